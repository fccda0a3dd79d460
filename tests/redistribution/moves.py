"""Moves between the states of an array on n devices, and the cheapest way from one state to another (section 3.3).

A state R(r)·V(v)·D(d₀, d₁, …) has the array in r equal copies, each as a sum of v parts, dim i of each cut into dᵢ
pieces; r·v·d₀·d₁·… = n. One collective shifts a factor f from one of these slots to another. A state doesn't say which
device has which piece: that is a layout's business. Costs are elements received by a device, for a local size L before
the move.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from typing import Literal

from partita.errors import InputError, divisors

Collective = Literal["slice", "value-split", "all-gather", "all-reduce", "reduce-scatter", "all-to-all"]


@dataclass(frozen=True, order=True)
class State:
    """How many equal copies there are of an array, how many parts of a sum, and how many pieces of each dim."""

    replicas: int
    parts: int
    dims: tuple[int, ...]

    @property
    def devices(self) -> int:
        return self.replicas * self.parts * prod(self.dims)

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What a device has of an array of this shape."""
        return tuple(size // pieces for size, pieces in zip(shape, self.dims, strict=True))

    def shifted(self, source: str, target: str, factor: int) -> State:
        """The state after ``factor`` went from one slot to another; a slot is R, V or D and the number of a dim."""
        slots = {"R": self.replicas, "V": self.parts} | {f"D{i}": pieces for i, pieces in enumerate(self.dims)}
        slots[source] //= factor
        slots[target] *= factor
        replicas, parts, *dims = slots.values()
        return State(replicas, parts, tuple(dims))

    def __str__(self) -> str:
        return f"R({self.replicas})·V({self.parts})·D({','.join(map(str, self.dims))})"


@dataclass(frozen=True)
class Move:
    """One collective in groups of ``group`` devices: the slots that it shifts between, the state and local shape after
    it, and the elements that each device receives."""

    collective: Collective
    source: str
    target: str
    group: int
    state: State
    local_shape: tuple[int, ...]
    received: Fraction


def states(shape: tuple[int, ...], devices: int) -> list[State]:
    """All states of an array on that many devices, in order; pieces of a dim are equal, so they divide it."""

    def fill(left: int, dims: tuple[int, ...]) -> Iterator[State]:
        if len(dims) < len(shape):
            for pieces in divisors(left):
                if shape[len(dims)] % pieces == 0:
                    yield from fill(left // pieces, (*dims, pieces))
        else:
            for parts in divisors(left):
                yield State(left // parts, parts, dims)

    return sorted(fill(devices, ()))


def moves(state: State, shape: tuple[int, ...]) -> Iterator[Move]:
    """Everything that one collective makes of a state.

    A device receives nothing to slice (R→D) or to split the value (R→V: one keeps it, the others take zero);
    L(f−1) to gather (D→R); 2L(f−1)/f to reduce to all (V→R); L(f−1)/f to reduce to pieces (V→D) or to exchange pieces
    (D→D′). A piece never becomes part of a sum (D→V).
    """
    dims = [f"D{i}" for i in range(len(shape))]
    local = prod(state.local_shape(shape))
    sizes = {"R": state.replicas, "V": state.parts} | dict(zip(dims, state.dims, strict=True))
    for source, size in sizes.items():
        for target in sizes:
            if source == target or (source in dims and target == "V"):
                continue
            for f in divisors(size)[1:]:
                after = state.shifted(source, target, f)
                if target in dims and shape[dims.index(target)] % after.dims[dims.index(target)]:
                    continue
                collective, received = _cost(source, target, Fraction(local), f)
                yield Move(collective, source, target, f, after, after.local_shape(shape), received)


def _cost(source: str, target: str, local: Fraction, f: int) -> tuple[Collective, Fraction]:
    if source == "R":
        return ("value-split" if target == "V" else "slice"), Fraction(0)
    if source == "V":
        return ("all-reduce", 2 * local * (f - 1) / f) if target == "R" else ("reduce-scatter", local * (f - 1) / f)
    return ("all-gather", local * (f - 1)) if target == "R" else ("all-to-all", local * (f - 1) / f)


@cache
def cheapest_from(source: State, shape: tuple[int, ...]) -> dict[State, tuple[Move, ...]]:
    """The cheapest moves to each state that can be reached: fewest elements received, then fewest moves (Dijkstra).

    InputError where the source isn't a state of an array of this shape.
    """
    if len(shape) != len(source.dims) or any(size % pieces for size, pieces in zip(shape, source.dims, strict=True)):
        raise InputError(f"{source} is no state of an array of shape {list(shape)}: its pieces don't divide the dims")
    paths: dict[State, tuple[Move, ...]] = {}
    queue: list[tuple[Fraction, int, int, State, tuple[Move, ...]]] = [(Fraction(0), 0, 0, source, ())]
    met = 0
    while queue:
        cost, count, _, state, path = heapq.heappop(queue)
        if state in paths:
            continue
        paths[state] = path
        for move in moves(state, shape):
            if move.state not in paths:
                # The running number keeps the first found of equal ones, and spares comparing paths.
                met += 1
                heapq.heappush(queue, (cost + move.received, count + 1, met, move.state, (*path, move)))
    return paths


def cheapest(source: State, target: State, shape: tuple[int, ...]) -> tuple[Move, ...]:
    """The cheapest moves from one state to another. InputError where they are not states of one array and n devices."""
    if source.devices != target.devices:
        raise InputError(
            f"{source} is on {source.devices} devices and {target} on {target.devices}: no moves lead there"
        )
    found = cheapest_from(source, shape)
    if target not in found:
        raise InputError(f"no moves lead from {source} to {target} of an array of shape {list(shape)} in equal pieces")
    return found[target]
