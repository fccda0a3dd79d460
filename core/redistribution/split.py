"""The mesh that is searched on, and the way back to the axes that the user knows.

Axes of one device are left out. Two meshes of the same devices become one that has the cuts of both. An axis is divided
where it crosses nodes, into a part across and a part inside, and into primes where that leaves few axes: then a part of
it can go its own way. Only where the dims that it cuts are even, for uneven pieces of pieces are other pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from partita.redistribution import steps
from partita.redistribution.array_type import ArrayType
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh
from partita.redistribution.price import Network
from partita.redistribution.steps import Step

MANY = 6


def plain(kind: ArrayType) -> ArrayType:
    """The same type without axes of size 1, the axes of its sum in the mesh's order."""
    axes = tuple((name, size) for name, size in kind.mesh.axes if size > 1)
    order = [name for name, _ in axes]
    dims = tuple(tuple(axis for axis in dim if axis in order) for dim in kind.layout.dims)
    partial = tuple(axis for axis in order if axis in kind.layout.partial)
    return ArrayType(kind.shape, Layout(dims, partial), Mesh(axes, kind.mesh.devices))


def divided(kind: ArrayType, axis: str, factors: Sequence[int]) -> ArrayType:
    """The same type with an axis divided into several; the axis cuts evenly, where it cuts."""
    names = tuple(f"{axis}[{index}]" for index in range(len(factors)))

    def put(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for one in axes for name in (names if one == axis else (one,)))

    layout = Layout(tuple(put(dim) for dim in kind.layout.dims), put(kind.layout.partial))
    return ArrayType(kind.shape, layout, kind.mesh.split(axis, factors))


def cuts_evenly(kind: ArrayType, axis: str) -> bool:
    """Whether an axis may be divided: what it and those before it cut is divided without remainder."""
    for size, axes in zip(kind.shape, kind.layout.dims, strict=True):
        if axis in axes:
            return size % kind.mesh.size(axes[: axes.index(axis) + 1]) == 0
    return True


def divided_ends(
    source: ArrayType, target: ArrayType, network: Network, into_primes: bool
) -> tuple[ArrayType, ArrayType]:
    """Source and target, plain, on a mesh divided at nodes, or into primes too; one mesh where they can be on one."""
    source, target = plain(source), plain(target)
    if source.mesh.devices == target.mesh.devices and source.mesh != target.mesh:
        source, target = _on_one(source, target)
    if source.mesh != target.mesh:
        return source, target
    at_nodes = _at_nodes(source.mesh, network)
    free = [axis for axis, _ in source.mesh.axes if cuts_evenly(source, axis) and cuts_evenly(target, axis)]
    count = len(source.mesh.axes) + sum(len(at_nodes.get(axis, ())) > 1 for axis in free)
    for axis, size in source.mesh.axes:
        if axis in free:
            factors = at_nodes.get(axis, (size,))
            finer = tuple(prime for factor in factors for prime in primes(factor))
            if into_primes and count + len(finer) - len(factors) <= MANY:
                count += len(finer) - len(factors)
                factors = finer
            if len(factors) > 1:
                source, target = divided(source, axis, factors), divided(target, axis, factors)
    return source, target


def _on_one(source: ArrayType, target: ArrayType) -> tuple[ArrayType, ArrayType]:
    """Both on the mesh that has the cuts of both; as they are where there is none."""

    def ends(kind: ArrayType) -> list[int]:
        sizes = [size for _, size in kind.mesh.axes]
        return [prod(sizes[index:]) for index in range(len(sizes) + 1)]

    cuts = sorted({*ends(source), *ends(target)})
    if any(two % one for one, two in pairwise(cuts)):
        return source, target
    found = []
    for kind in (source, target):
        for (axis, size), inner in zip(kind.mesh.axes, ends(kind)[1:], strict=True):
            inside = [cut for cut in cuts if inner <= cut <= inner * size]
            factors = [two // one for one, two in pairwise(inside)][::-1]
            if len(factors) > 1:
                if not cuts_evenly(kind, axis):
                    return source, target
                kind = divided(kind, axis, factors)
        found.append(kind)
    assert [size for _, size in found[0].mesh.axes] == [size for _, size in found[1].mesh.axes]
    names = dict(zip(found[1].mesh.sizes, found[0].mesh.sizes, strict=True))
    layout = Layout(
        tuple(tuple(names[axis] for axis in dim) for dim in found[1].layout.dims),
        tuple(names[axis] for axis in found[1].layout.partial),
    )
    return found[0], ArrayType(target.shape, layout, found[0].mesh)


def _at_nodes(mesh: Mesh, network: Network) -> dict[str, tuple[int, ...]]:
    """How axes are divided whose neighbours share nodes, though not all of them."""
    nodes = network.nodes[np.asarray(mesh.devices)].reshape([size for _, size in mesh.axes])
    found = {}
    for index, (axis, size) in enumerate(mesh.axes):
        lines = np.moveaxis(nodes, index, -1).reshape(-1, size)
        for inside in range(size - 1, 1, -1):
            if size % inside == 0:
                blocks = lines.reshape(-1, size // inside, inside)
                if (blocks == blocks[..., :1]).all():
                    found[axis] = (size // inside, inside)
                    break
    return {axis: factors for axis, factors in found.items() if network.crosses(mesh, (axis,))}


def primes(number: int) -> tuple[int, ...]:
    """The prime factors, largest first."""
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return tuple(sorted([*found, number] if number > 1 else found, reverse=True))


def joined(found: Sequence[Step]) -> list[Step]:
    """The same steps, on a mesh where the parts of an axis are one again that go together all the way."""
    here = list(found)
    names = [name for name, _ in here[0].before.mesh.axes] if here else []
    for axis in dict.fromkeys(name.partition("[")[0] for name in names if "[" in name):
        parts = tuple(name for name in names if name.partition("[")[0] == axis)
        here = _joined(here, axis, parts)
    return here


def _joined(found: list[Step], axis: str, parts: tuple[str, ...]) -> list[Step]:
    # Slices one after another are as one: between them the parts of an axis may be apart.
    runs: list[list[Step]] = []
    for step in found:
        if step.op == "slice" and runs and runs[-1][0].op == "slice":
            runs[-1].append(step)
        else:
            runs.append([step])
    types = [runs[0][0].before, *(run[-1].after for run in runs)]
    if not all(_together(kind, parts) for kind in types):
        return found
    whole = [_as_one(kind, axis, parts) for kind in types]
    made: list[Step] = []
    for run, before, after in zip(runs, whole, whole[1:], strict=False):
        if run[0].op == "slice":
            for dim, (have, want) in enumerate(zip(before.layout.dims, after.layout.dims, strict=True)):
                for new in want[len(have) :]:
                    made.append(steps.slice_(made[-1].after if made else before, new, dim))
            continue
        step = run[0]
        if step.op in ("direct", "all-permute"):
            made.append(steps.direct(before, after, step.nodes))
        else:
            made.append(replace(step, before=before, after=after, axes=_one_for_parts(step.axes, axis, parts)))
    return made


def _together(kind: ArrayType, parts: tuple[str, ...]) -> bool:
    """Whether the parts of an axis stand one after another, or are all replicated, or all of a sum."""
    places = [*kind.layout.dims, kind.layout.partial]
    here = [axes for axes in places if any(part in axes for part in parts)]
    if not here:
        return True
    (axes, *others) = here
    start = axes.index(parts[0]) if parts[0] in axes else -1
    return not others and start >= 0 and axes[start : start + len(parts)] == parts


def _one_for_parts(axes: tuple[str, ...], axis: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis if name in parts else name for name in axes))


def _as_one(kind: ArrayType, axis: str, parts: tuple[str, ...]) -> ArrayType:
    sizes = dict(kind.mesh.axes)
    names = _one_for_parts(tuple(sizes), axis, parts)
    mesh = Mesh(tuple((name, sizes.get(name) or kind.mesh.size(parts)) for name in names), kind.mesh.devices)
    dims = tuple(_one_for_parts(axes, axis, parts) for axes in kind.layout.dims)
    return ArrayType(kind.shape, Layout(dims, _one_for_parts(kind.layout.partial, axis, parts)), mesh)
