"""From what a device has of a value to what an op needs of it: the collectives between, in order.

Which ones is for the search of ``redistribution`` to say: those that move the fewest bytes. Here a state becomes the
type of an array, and the steps that were found become collectives along one axis each. Each has its transpose as
backward pass, so that gradients follow from forward views by rule (SuperScaler, section 3.2):

===============  ==========================  ==============================================
form             forward                     backward
===============  ==========================  ==============================================
enter            identity                    sum: its readers work on pieces of something else
sum              sum of partial values       identity
scatter          sum, of which each a piece  pieces put together
gather           pieces put together         each its piece
gather_entered   pieces put together         sum, of which each its piece
slice            each its piece              pieces put together
exchange         pieces of another dim       pieces of the first dim
===============  ==========================  ==============================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd, lcm, prod
from typing import Any

from partita.redistribution import ArrayType, Layout, Mesh
from partita.redistribution.search import redistribution
from partita.redistribution.steps import Op
from partita.spacetime.parts import Part, Spread, State, local_parts
from partita.spacetime.program import Form

# Pieces of a turn are code that all devices of a copy run together: nothing goes from one device to another alone.
ALLOWED: frozenset[Op] = frozenset({"slice", "all-gather", "all-to-all", "all-reduce", "reduce-scatter"})


@dataclass(frozen=True)
class Step:
    """One collective along an axis, and what a device has of the value after it."""

    form: Form
    axis: str
    after: State
    attributes: dict[str, Any] = field(default_factory=dict)


def steps(
    shape: Sequence[int],
    before: State,
    after: State,
    entered: Collection[str],
    axes: Mapping[str, int],
    turns: Collection[str] = (),
) -> list[Step]:
    """The way between two states of a value of that shape, on a stage of those ``axes`` (name to size, major first).

    Along ``turns`` a device has its parts one after another: what they make is put together before devices exchange
    anything, and they take their slices after it. ``entered`` are the axes along which the result is whole and its
    readers work on pieces: the gradient is summed.
    """
    assert not set(entered) & set(after), (entered, after)
    way = _Way(shape, before, axes)
    for axis in reversed(list(axes)):
        if axis in turns and axis in before and before[axis] != after.get(axis):
            way.sum(axis) if before[axis] == "partial" else way.gather(axis)
    between = {axis: spread for axis, spread in after.items() if axis not in turns or way.state.get(axis) == spread}
    for here, there in _between(way.state, between, shape, axes):
        for move in _moves(shape, here, there, axes):
            way.move(move)
    for axis in axes:
        if isinstance(wanted := after.get(axis), Part) and axis not in way.state:
            way.slice(axis, wanted)
    for axis in axes:
        if axis in entered:
            way.enter(axis)
    assert way.state == dict(after), (before, after, way.state)
    return way.found


class _Way:
    """The collectives so far, and the state after them."""

    def __init__(self, shape: Sequence[int], before: State, axes: Mapping[str, int]):
        self.shape, self.axes = shape, axes
        self.state = dict(before)
        self.found: list[Step] = []

    def move(self, move: tuple[Op, tuple[str, ...], State]) -> None:
        """A step of the search, along one axis after another: the innermost first where pieces are put together."""
        op, axes, state = move
        inner_first = sorted(axes, key=lambda axis: -_parts(self.state.get(axis)))
        outer_first = sorted(axes, key=lambda axis: _parts(state.get(axis)))
        if op == "all-gather":
            for axis in inner_first:
                self.gather(axis)
        elif op == "all-to-all":
            for axis in inner_first:
                self.exchange(axis, state[axis])
        elif op == "all-reduce":
            for axis in reversed(list(axes)):
                self.sum(axis)
        else:
            for axis in outer_first:
                self.slice(axis, state[axis]) if op == "slice" else self.scatter(axis, state[axis])
        assert self.state == state, (move, self.state)

    def step(self, form: Form, axis: str, spread: Spread | None, **attributes: Any) -> None:
        if spread is None:
            self.state.pop(axis, None)
        else:
            self.state[axis] = spread
        self.found.append(Step(form, axis, dict(self.state), attributes))

    def sum(self, axis: str) -> None:
        self.step("sum", axis, None)

    def scatter(self, axis: str, wanted: Spread) -> None:
        self.state[axis] = wanted
        self.step("scatter", axis, wanted, **self._where(axis))

    def gather(self, axis: str) -> None:
        at = self._where(axis)
        size = self.shape[at["dim"]]
        for other, part in self.state.items():
            if other != axis and isinstance(part, Part) and part.dim == at["dim"]:
                size //= self.axes[other]
        self.step("gather", axis, None, **at, size=size)

    def enter(self, axis: str) -> None:
        """Sum the gradient along an axis, once: by the gather that made the value whole for good, or by itself.

        A value may have been whole before and cut again. The gradient comes back summed to where it was.
        """
        gathers = [index for index, step in enumerate(self.found) if (step.form, step.axis) == ("gather", axis)]
        if gathers:
            self.found[gathers[-1]] = replace(self.found[gathers[-1]], form="gather_entered")
        else:
            self.step("enter", axis, None)

    def exchange(self, axis: str, wanted: Spread) -> None:
        source = self._where(axis)
        assert isinstance(wanted, Part)
        if source["dim"] == wanted.dim:
            # Other parts of the same dim: there is no collective that takes them from one another.
            self.gather(axis)
            self.slice(axis, wanted)
            return
        self.state[axis] = wanted
        self.step("exchange", axis, wanted, source=source, target=self._where(axis))

    def slice(self, axis: str, wanted: Spread) -> None:
        self.state[axis] = wanted
        self.step("slice", axis, wanted, **self._where(axis))

    def _where(self, axis: str) -> dict[str, int]:
        """The parts that a device has of the dim, each cut along the axis; and of how many parts the dim consists."""
        part = self.state[axis]
        assert isinstance(part, Part)
        return {"dim": part.dim, "parts": local_parts(self.state, axis, self.axes), "of": part.parts}


def _parts(spread: Spread | None) -> int:
    return spread.parts if isinstance(spread, Part) else 0


def _between(before: State, after: State, shape: Sequence[int], axes: Mapping[str, int]) -> list[tuple[State, State]]:
    """The two states, or both with one between them where their cuts don't lie inside one another: what differs is
    put together then."""
    if _factors(shape, [before, after], axes) is not None:
        return [(before, after)]
    same = {axis: spread for axis, spread in before.items() if after.get(axis) == spread}
    return [(before, same), (same, after)]


def _factors(shape: Sequence[int], states: Sequence[State], axes: Mapping[str, int]) -> list[list[int]] | None:
    """By dim, the numbers of equal parts that any cut speaks of, 1 first: each divides the next. None where cuts cross.

    A dim of parts that are cut is several dims: of 3 parts that are each cut, the first is 3 long and isn't cut.
    """
    found = [sorted({1, *(p.parts for state in states for p in state.values() if isinstance(p, Part) and p.dim == dim)})
             for dim in range(len(shape))]  # fmt: skip
    for parts in found:
        if any(many % few for few, many in pairwise(parts)):
            return None
    for state in states:
        for dim, parts in enumerate(found):
            for few, many in pairwise(parts):
                if (many // few) % _pieces(state, axes, Part(dim, few)):
                    return None
    return found


def _moves(
    shape: Sequence[int], before: State, after: State, axes: Mapping[str, int]
) -> list[tuple[Op, tuple[str, ...], State]]:
    """The steps of the search: what is done along which axes, and the state after it."""
    if dict(before) == dict(after):
        return []
    factors = _factors(shape, [before, after], axes)
    assert factors is not None, (before, after)
    places = [Part(dim, parts) for dim, all_parts in enumerate(factors) for parts in all_parts]
    devices = prod(axes.values())
    lengths: list[int] = []
    for dim, (size, all_parts) in enumerate(zip(shape, factors, strict=True)):
        # What isn't divisible is padded by whoever holds the value: the pieces are equal.
        wanted = lcm(*(_pieces(state, axes, Part(dim, all_parts[-1])) for state in (before, after)))
        rest = -(-size // all_parts[-1] // wanted) * wanted
        lengths += [many // few for few, many in pairwise(all_parts)] + [rest]
    # Which steps are the best depends on what divides the sizes, not on the sizes.
    sizes = tuple(gcd(length, devices) for length in lengths)
    mesh = Mesh(tuple(axes.items()), tuple(range(devices)))

    def array(state: State) -> ArrayType:
        cuts = tuple(tuple(axis for axis in axes if state.get(axis) == place) for place in places)
        return ArrayType(sizes, Layout(cuts, tuple(axis for axis in axes if state.get(axis) == "partial")), mesh)

    def state(kind: ArrayType) -> State:
        found: dict[str, Spread] = dict.fromkeys(kind.layout.partial, "partial")
        for place, cut in zip(places, kind.layout.dims, strict=True):
            parts = place.parts
            for axis in cut:
                found[axis] = Part(place.dim, parts)
                parts *= axes[axis]
        return found

    way = redistribution(array(before), array(after), 1, objective="bytes", allowed=ALLOWED, whole_axes=True)
    assert all(priced.step.after.even for priced in way.steps), way
    return [(priced.step.op, priced.step.axes, state(priced.step.after)) for priced in way.steps]


def _pieces(state: State, axes: Mapping[str, int], place: Part) -> int:
    """Into how many pieces each of the equal parts of a dim is cut."""
    return prod(axes[axis] for axis, part in state.items() if part == place)
