"""Layouts as DTensor's placements: one entry a mesh axis, as torch prints them, long or short.

Placements cut a dim in the order of the mesh axes. ``_S(0, 2)``, torch's strided shard, says that an axis cuts after
later ones of the mesh, which have made 2 pieces; along later axes of size 1 that says nothing, and such an order isn't
kept. torch names only sums, averages and the like ``P``; what is added up is the one that a layout has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from partita.errors import InputError, listed
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh

_SHARD = re.compile(r"(?:S|Shard)\((?:dim=)?(-?\d{1,9})\)")
_STRIDED = re.compile(r"(?:_S|SS|_StridedShard)\((?:dim=)?(-?\d{1,9}),(?:sf=|split_factor=)?(\d{1,9})\)")
_REPLICATE = re.compile(r"(?:R|Replicate)(?:\(\))?")
_PARTIAL = re.compile(r"(?:P|Partial)(?:\((?:reduce_op=)?['\"]?(\w*)['\"]?\))?")

# What torch knows to make of the values of several devices.
_REDUCTIONS = {"sum", "avg", "mean", "product", "min", "max", "band", "bor", "bxor", "premul_sum"}


def read_placements(text: str, mesh: Mesh, dims: int) -> Layout:
    """The layout that ``S(0),R`` spells, or ``(Shard(dim=0), Replicate())``. InputError quotes what can't be read."""
    plain = re.sub(r"\s", "", text)
    bracketed = plain[:1] + plain[-1:] in ("[]", "()")
    entries = re.split(r",(?![^(]*\))", plain[1:-1].removesuffix(",") if bracketed else plain)
    if len(entries) != len(mesh.axes):
        raise InputError(
            f'placements "{text}": {len(entries)} entries, the mesh "{mesh}" has {len(mesh.axes)} axes; each needs one'
        )
    orders: list[list[str]] = [[] for _ in range(dims)]
    partial: list[str] = []
    # From the last axis to the first: those that may stand before an axis against the order of the mesh are then known.
    for entry, (axis, _) in reversed(list(zip(entries, mesh.axes, strict=True))):
        if found := _SHARD.fullmatch(entry) or _STRIDED.fullmatch(entry):
            order = orders[_dim(text, entry, int(found[1]), dims)]
            pieces = int(found[2]) if found.re is _STRIDED else 1
            order.insert(_position(text, entry, [mesh.sizes[other] for other in order], pieces), axis)
        elif found := _PARTIAL.fullmatch(entry):
            _require_sum(text, entry, found[1], axis, mesh.sizes[axis])
            partial.insert(0, axis)
        elif not _REPLICATE.fullmatch(entry):
            raise InputError(f'placements "{text}": "{entry}" is none; S(0), _S(0, 2), R and P are')
    return Layout(tuple(map(tuple, orders)), tuple(partial))


def as_placements(layout: Layout, mesh: Mesh) -> str:
    """The layout as torch prints it, one entry a mesh axis: ``S(0)``, ``_S(0, 2)``, ``R``, ``P(sum)``."""
    found = dict.fromkeys(mesh.sizes, "R") | dict.fromkeys(layout.partial, "P(sum)")
    for axis, (dim, pieces) in shards(layout, mesh).items():
        found[axis] = f"S({dim})" if pieces == 1 else f"_S({dim}, {pieces})"
    return ",".join(found.values())


def shards(layout: Layout, mesh: Mesh) -> dict[str, tuple[int, int]]:
    """Of each axis that cuts, the dim, and how many pieces later axes of the mesh have made of it before."""
    order = list(mesh.sizes)
    found = {}
    for dim, axes in enumerate(layout.dims):
        for index, axis in enumerate(axes):
            later = [other for other in axes[:index] if order.index(other) > order.index(axis)]
            found[axis] = dim, mesh.size(later)
    return found


def _dim(text: str, entry: str, dim: int, dims: int) -> int:
    if not -dims <= dim < dims:
        works = f"S(0) to S({dims - 1}) work" if dims > 1 else "S(0) works" if dims else "R and P work"
        raise InputError(f'placements "{text}": "{entry}" for a tensor of {dims} dims; {works}')
    return dim % dims


def _position(text: str, entry: str, sizes: Sequence[int], pieces: int) -> int:
    """How many of the axes that cut a dim, all later ones of the mesh, cut it before one with that many pieces."""
    made = [prod(sizes[:count]) for count in range(len(sizes) + 1)]
    if pieces not in made:
        works = listed(dict.fromkeys(made))
        raise InputError(
            f'placements "{text}": "{entry}": the later axes of the mesh make no {pieces} pieces of that dim; '
            f"{works} {'work' if len(set(made)) > 1 else 'works'}"
        )
    return made.index(pieces)


def _require_sum(text: str, entry: str, reduction: str | None, axis: str, size: int) -> None:
    """Another reduction taken for a sum would change the value."""
    if reduction in (None, "", "sum"):
        return
    if reduction not in _REDUCTIONS:
        raise InputError(
            f'placements "{text}": "{entry}" names no way to reduce, and placements name no axes; S(0), R and P work, '
            "one for each mesh axis; a PartitionSpec is one P(…) around the entries of all dims, such as P('x', None)"
        )
    works = (
        f"divide what each device has by {size}, the size of the axis, and it is P(sum)"
        if reduction in ("avg", "mean")
        else "R works, once whoever made it has reduced it"
    )
    raise InputError(
        f'placements "{text}": "{entry}": what devices hold along the axis "{axis}" can be parts of a sum, not of '
        f'"{reduction}"; {works}'
    )
