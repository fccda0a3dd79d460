"""The steps of a redistribution: from one type of an array to the next (the paper's rules, section 3, and sums).

==============  ============================================================  ==================================
step            what each device does                                         the type
==============  ============================================================  ==================================
slice           keeps a part of what it has                                   a dim gains an axis
mask            keeps what it has if it is the first along the axis, else 0   an axis becomes a sum
pad             puts zeros around what it has                                 an axis of a dim becomes a sum
all-gather      puts the parts of a group together                            a dim loses its last axes
all-to-all      gives each of its group a part of another dim                 axes move from a dim to another
all-permute     gives what it has to one device and takes another's           axes change places
all-reduce      adds up the parts of a sum                                    a sum over axes is whole
reduce-scatter  adds up its own piece of the parts of a sum                   a sum over axes becomes a cut
direct          takes what it lacks from whoever has it                       any, of the same sums
==============  ============================================================  ==================================

Local steps are free. The last axis of a dim is the one that cuts what the others have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from partita.redistribution.array_type import ArrayType
from partita.redistribution.layout import Layout

Op = Literal[
    "slice", "mask", "pad", "all-gather", "all-to-all", "all-permute", "all-reduce", "reduce-scatter", "direct"
]
LOCAL: frozenset[Op] = frozenset(("slice", "mask", "pad"))


@dataclass(frozen=True)
class Step:
    """One step. ``axes`` are those along which devices communicate, empty for a direct step, where all do.

    ``dim`` is the tensor dim that changes, ``to_dim`` the one to which axes move. ``nodes``, of a direct step, is the
    node of each device of the cluster: what a device lacks and its node has comes from there. None: from all who have
    it in equal parts.
    """

    op: Op
    before: ArrayType
    after: ArrayType
    axes: tuple[str, ...] = ()
    dim: int | None = None
    to_dim: int | None = None
    nodes: tuple[int, ...] | None = None

    @property
    def group_size(self) -> int:
        """How many devices communicate with each other."""
        if self.op == "direct" or self.op == "all-permute":
            return len({*self.before.mesh.devices, *self.after.mesh.devices})
        return self.before.mesh.size(self.axes)


def slice_(array: ArrayType, axis: str, dim: int) -> Step:
    """A dim is cut along an axis along which devices hold the same."""
    assert axis in array.replicated, (axis, array)
    return Step("slice", array, _with(array, {dim: (*array.layout.dims[dim], axis)}), (axis,), dim)


def mask(array: ArrayType, axis: str) -> Step:
    """What devices along an axis all hold becomes a sum over it: the first's is the value, the others' are zeros."""
    assert axis in array.replicated, (axis, array)
    return Step("mask", array, _with(array, {}, (*array.layout.partial, axis)), (axis,))


def pad(array: ArrayType, dim: int) -> Step:
    """The last cut of a dim becomes a sum: each device has zeros where the others' parts are."""
    *kept, axis = array.layout.dims[dim]
    return Step("pad", array, _with(array, {dim: tuple(kept)}, (*array.layout.partial, axis)), (axis,), dim)


def all_gather(array: ArrayType, dim: int, count: int = 1) -> Step:
    """The last ``count`` axes of a dim are put together."""
    axes = array.layout.dims[dim]
    return Step("all-gather", array, _with(array, {dim: axes[:-count]}), axes[-count:], dim)


def all_to_all(array: ArrayType, dim: int, to_dim: int, count: int = 1) -> Step:
    """The last ``count`` axes of a dim cut another dim instead, as its last ones, in the same order."""
    axes = array.layout.dims[dim]
    moved = {dim: axes[:-count], to_dim: (*array.layout.dims[to_dim], *axes[-count:])}
    return Step("all-to-all", array, _with(array, moved), axes[-count:], dim, to_dim)


def all_reduce(array: ArrayType, axes: Sequence[str]) -> Step:
    """A sum over axes is added up, on all devices."""
    left = tuple(axis for axis in array.layout.partial if axis not in axes)
    return Step("all-reduce", array, _with(array, {}, left), tuple(axes))


def reduce_scatter(array: ArrayType, axes: Sequence[str], dim: int) -> Step:
    """A sum over axes is added up, on each device a piece of a dim."""
    left = tuple(axis for axis in array.layout.partial if axis not in axes)
    after = _with(array, {dim: (*array.layout.dims[dim], *axes)}, left)
    return Step("reduce-scatter", array, after, tuple(axes), dim)


def direct(array: ArrayType, target: ArrayType, nodes: tuple[int, ...] | None = None) -> Step:
    """Whatever a device lacks is sent to it; an all-permute where all have one tile, even, and take one.

    Sums must be the same in both, over axes of one mesh: their parts are then arrays of their own.
    """
    assert set(array.layout.partial) == set(target.layout.partial)
    assert not array.layout.partial or array.mesh == target.mesh
    if (
        array.mesh == target.mesh and array.even and target.even
        and not array.replicated and not target.replicated and array.local_shape() == target.local_shape()
    ):  # fmt: skip
        moved = {axis for one, two in zip(array.layout.dims, target.layout.dims, strict=True)
                 for index, axis in enumerate(one) if two[index : index + 1] != (axis,)}  # fmt: skip
        return Step("all-permute", array, target, tuple(axis for axis in array.mesh.sizes if axis in moved))
    return Step("direct", array, target, nodes=nodes)


def _with(array: ArrayType, dims: dict[int, tuple[str, ...]], partial: tuple[str, ...] | None = None) -> ArrayType:
    changed = tuple(dims.get(index, axes) for index, axes in enumerate(array.layout.dims))
    sums = array.layout.partial if partial is None else partial
    # Sums are added up in any order: one spelling of each.
    order = list(array.mesh.sizes)
    return array.with_layout(Layout(changed, tuple(sorted(sums, key=order.index))))
