"""The layouts that a search walks through, and the collectives that lead from one to the next.

A layout is a pair of tuples, for speed: the axes of each dim as numbers of the mesh's axes, and the axes of the sum.
Prices here are those of ``price``, for the largest part of each group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from partita.redistribution import steps
from partita.redistribution.array_type import ArrayType
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh
from partita.redistribution.price import Network, op_seconds
from partita.redistribution.steps import Op, Step

Axes = tuple[int, ...]
State = tuple[tuple[Axes, ...], Axes]


@dataclass(frozen=True)
class Move:
    """One step from one layout to another, the elements that a device receives at most, and its seconds."""

    op: Op
    before: State
    after: State
    elements: int
    seconds: float
    axes: Axes = ()
    dim: int = 0
    to_dim: int = 0


class Space:
    """The layouts of an array on a mesh with at most ``memory`` elements a device, and the moves of ``allowed``.

    ``even``: only those whose pieces are equal; between two of them no others are worth their unequal pieces.
    """

    def __init__(
        self, mesh: Mesh, shape: tuple[int, ...], item_bytes: int, network: Network, memory: int,
        allowed: frozenset[Op], even: bool,
    ):  # fmt: skip
        self.mesh, self.shape, self.item_bytes, self.network = mesh, shape, item_bytes, network
        self.memory, self.allowed, self.even = memory, allowed, even
        self.names = [name for name, _ in mesh.axes]
        self.sizes = [size for _, size in mesh.axes]
        self.crossing = [network.crosses(mesh, (name,)) for name in self.names]
        self._length: dict[tuple[int, Axes], int] = {}
        self._seconds: dict[tuple[Op, int, int, bool], float] = {}

    def state(self, layout: Layout) -> State:
        number = self.names.index
        return tuple(tuple(map(number, axes)) for axes in layout.dims), tuple(sorted(map(number, layout.partial)))

    def kind(self, state: State) -> ArrayType:
        """The type that a layout is."""
        dims, sums = state
        names = self.names
        layout = Layout(tuple(tuple(names[axis] for axis in axes) for axes in dims), tuple(names[a] for a in sums))
        return ArrayType(self.shape, layout, self.mesh)

    def length(self, dim: int, axes: Axes) -> int:
        """The longest piece of a dim, that of the first device."""
        key = dim, axes
        if key not in self._length:
            found = self.shape[dim]
            for axis in axes:
                found = -(-found // self.sizes[axis])
            self._length[key] = found
        return self._length[key]

    def local(self, state: State) -> int:
        """Elements of the device that holds most."""
        found = 1
        for dim, axes in enumerate(state[0]):
            found *= self.length(dim, axes)
        return found

    def replicated(self, state: State) -> list[int]:
        used = {*chain(*state[0]), *state[1]}
        return [axis for axis in range(len(self.sizes)) if axis not in used]

    def size(self, axes: Axes) -> int:
        found = 1
        for axis in axes:
            found *= self.sizes[axis]
        return found

    def move(self, op: Op, before: State, after: State, axes: Axes, dim: int = 0, to_dim: int = 0) -> Move:
        """The step with its price."""
        group, elements, size = self.size(axes), 0, 0
        if op == "all-gather":
            part = self.local(before)
            elements, size = part * (group - 1), part * group
        elif op == "reduce-scatter":
            part = self.local(after)
            elements, size = part * (group - 1), part * group
        elif op == "all-reduce":
            size = self.local(before)
            elements = size + -(-size // group) * (group - 2)
        elif op == "all-to-all":
            block = self.local(before) // max(1, self.length(to_dim, before[0][to_dim]))
            block *= self.length(to_dim, after[0][to_dim])
            elements, size = block * (group - 1), block * group
        elif op == "all-permute":
            elements = size = self.local(before)
        return Move(op, before, after, elements, self._taken(op, size, group, axes), axes, dim, to_dim)

    def _taken(self, op: Op, size: int, group: int, axes: Axes) -> float:
        if not size:
            return 0.0
        key = op, size, group, any(self.crossing[axis] for axis in axes)
        if key not in self._seconds:
            self._seconds[key] = op_seconds(op, size * self.item_bytes, group, self.network.link(key[3]))
        return self._seconds[key]

    def moves(self, state: State, sums: Axes, slices: bool) -> Iterator[Move]:
        """All steps from a layout that stay within the memory; ``sums`` are those of the target."""
        for move in self._all(state, sums, slices):
            if self.local(move.after) <= self.memory and (not self.even or self._even(move.after)):
                yield move

    def _all(self, state: State, sums: Axes, slices: bool) -> Iterator[Move]:
        dims, partial = state
        free = self.replicated(state)
        allowed = self.allowed
        for dim, axes in enumerate(dims):
            if slices and "slice" in allowed:
                for axis in free:
                    yield self.move("slice", state, (put(dims, dim, (*axes, axis)), partial), (axis,), dim)
            for count in range(1, len(axes) + 1):
                last, rest = axes[-count:], axes[:-count]
                if "all-gather" in allowed:
                    yield self.move("all-gather", state, (put(dims, dim, rest), partial), last, dim)
                yield from self._exchanged(state, dim, last, rest)
            for some in self._added(partial, dims, sums):
                if "reduce-scatter" in allowed:
                    left = tuple(axis for axis in partial if axis not in some)
                    after = (put(dims, dim, (*axes, *some)), left)
                    yield self.move("reduce-scatter", state, after, some, dim)
            if "pad" in allowed and axes and axes[-1] in sums:
                after = (put(dims, dim, axes[:-1]), tuple(sorted((*partial, axes[-1]))))
                yield self.move("pad", state, after, axes[-1:], dim)
        if "all-reduce" in allowed:
            for some in self._added(partial, dims, sums):
                left = tuple(axis for axis in partial if axis not in some)
                yield self.move("all-reduce", state, (dims, left), some)
        if "mask" in allowed:
            for axis in free:
                if axis in sums:
                    yield self.move("mask", state, (dims, tuple(sorted((*partial, axis)))), (axis,))
        if "all-permute" in allowed and not free and not partial and self._even(state):
            yield from self._permuted(state)

    def _exchanged(self, state: State, dim: int, last: Axes, rest: Axes) -> Iterator[Move]:
        if "all-to-all" not in self.allowed:
            return
        for to_dim, there in enumerate(state[0]):
            if to_dim != dim:
                after = (put(put(state[0], dim, rest), to_dim, (*there, *last)), state[1])
                yield self.move("all-to-all", state, after, last, dim, to_dim)

    def _added(self, partial: Axes, dims: tuple[Axes, ...], sums: Axes) -> list[Axes]:
        """Which axes of a sum are added up together: each, and all that must be."""
        gone = tuple(axis for axis in partial if axis not in sums)
        return [(axis,) for axis in partial] + ([gone] if len(gone) > 1 else [])

    def _even(self, state: State) -> bool:
        return all(self.shape[dim] % self.size(axes) == 0 for dim, axes in enumerate(state[0]))

    def _permuted(self, state: State) -> Iterator[Move]:
        """Two axes of equal size change places, or two neighbours of any size in one dim."""
        places = [(dim, index) for dim, axes in enumerate(state[0]) for index in range(len(axes))]
        for number, (dim, index) in enumerate(places):
            for to_dim, to_index in places[number + 1 :]:
                one, two = state[0][dim][index], state[0][to_dim][to_index]
                if self.sizes[one] == self.sizes[two] or (dim == to_dim and to_index == index + 1):
                    dims = [list(axes) for axes in state[0]]
                    dims[dim][index], dims[to_dim][to_index] = two, one
                    after = (tuple(map(tuple, dims)), state[1])
                    yield self.move("all-permute", state, after, tuple(sorted((one, two))))

    def step(self, move: Move) -> Step:
        """The step of a move."""
        array, axes = self.kind(move.before), tuple(self.names[axis] for axis in move.axes)
        if move.op == "slice":
            return steps.slice_(array, axes[0], move.dim)
        if move.op == "mask":
            return steps.mask(array, axes[0])
        if move.op == "pad":
            return steps.pad(array, move.dim)
        if move.op == "all-gather":
            return steps.all_gather(array, move.dim, len(axes))
        if move.op == "all-to-all":
            return steps.all_to_all(array, move.dim, move.to_dim, len(axes))
        if move.op == "all-reduce":
            return steps.all_reduce(array, axes)
        if move.op == "reduce-scatter":
            return steps.reduce_scatter(array, axes, move.dim)
        return steps.direct(array, self.kind(move.after))

    def ungathered(self, state: State) -> Iterator[Move]:
        """The all-gathers along one axis that end in a layout, and the local steps that make its sum."""
        dims, partial = state
        for axis in self.replicated(state) if "all-gather" in self.allowed else ():
            for dim, axes in enumerate(dims):
                yield self.move("all-gather", (put(dims, dim, (*axes, axis)), partial), state, (axis,), dim)
        for axis in partial:
            left = tuple(other for other in partial if other != axis)
            if "mask" in self.allowed:
                yield self.move("mask", (dims, left), state, (axis,))
            for dim, axes in enumerate(dims) if "pad" in self.allowed else ():
                yield self.move("pad", (put(dims, dim, (*axes, axis)), left), state, (axis,), dim)

    def unexchanged(self, state: State) -> Iterator[Move]:
        """The all-to-alls that end in a layout."""
        for dim, axes in enumerate(state[0]):
            for count in range(1, len(axes) + 1):
                for move in self._exchanged(state, dim, axes[-count:], axes[:-count]):
                    before = move.after
                    if self.local(before) <= self.memory:
                        yield self.move("all-to-all", before, state, axes[-count:], move.to_dim, dim)


def put(dims: tuple[Axes, ...], dim: int, axes: Axes) -> tuple[Axes, ...]:
    """The dims with other axes in one of them."""
    return (*dims[:dim], axes, *dims[dim + 1 :])
