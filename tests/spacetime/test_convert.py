"""From one state of a value to another: every device ends with exactly its part, by NumPy on a small mesh."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from partita.spacetime.convert import Step, steps
from partita.spacetime.parts import Part, State, local_shape, nests

Place = tuple[int, ...]
Held = dict[Place, np.ndarray]
SIZES = {"a": 2, "b": 3}
SHAPE = (12, 36)
PLACES = list(product(*(range(size) for size in SIZES.values())))


def mine(whole: np.ndarray, state: State, place: Place) -> np.ndarray:
    """A device's part, index by index: of each equal part of a cut dim the piece of its coordinate."""
    keep = [np.ones(size, dtype=bool) for size in whole.shape]
    for axis, coordinate in zip(SIZES, place, strict=True):
        if isinstance(part := state.get(axis), Part):
            length = whole.shape[part.dim] // part.parts // SIZES[axis]
            keep[part.dim] &= np.arange(whole.shape[part.dim]) // length % SIZES[axis] == coordinate
    return whole[np.ix_(*keep)]


def begin(whole: np.ndarray, state: State) -> Held:
    """What the devices have: where the state is partial, addends that are all different."""
    partial = [axis for axis in SIZES if state.get(axis) == "partial"]
    addends = int(np.prod([SIZES[axis] for axis in partial]))
    shares = np.random.default_rng(1).integers(-9, 9, (addends, *whole.shape))
    shares[-1] = whole - shares[:-1].sum(axis=0)
    held = {}
    for place in PLACES:
        number = 0
        for axis, coordinate in zip(SIZES, place, strict=True):
            number = number * SIZES[axis] + coordinate if axis in partial else number
        held[place] = mine(shares[number], state, place)
    return held


def pieces(value: np.ndarray, at: dict[str, int], count: int) -> list[np.ndarray]:
    """The value in ``count`` pieces of each of its parts."""
    chunks = np.split(value, at["parts"] * count, axis=at["dim"])
    return [np.concatenate(chunks[index::count], axis=at["dim"]) for index in range(count)]


def together(values: list[np.ndarray], at: dict[str, int]) -> np.ndarray:
    chunks = [np.split(value, at["parts"], axis=at["dim"]) for value in values]
    return np.concatenate([chunk[part] for part in range(at["parts"]) for chunk in chunks], axis=at["dim"])


def run(step: Step, held: Held) -> Held:
    """What a collective does on each device, from what it says of one device alone."""
    axis, count, at = list(SIZES).index(step.axis), SIZES[step.axis], step.attributes
    result = {}
    for place, value in held.items():
        group = [held[(*place[:axis], other, *place[axis + 1 :])] for other in range(count)]
        own = place[axis]
        if step.form in ("gather", "gather_entered"):
            result[place] = together(group, at)
        elif step.form == "exchange":
            result[place] = together([pieces(other, at["target"], count)[own] for other in group], at["source"])
        else:
            result[place] = {
                "enter": lambda value=value: value,
                "sum": lambda group=group: sum(group),
                "scatter": lambda group=group, own=own: pieces(sum(group), at, count)[own],
                "slice": lambda value=value, own=own: pieces(value, at, count)[own],
            }[step.form]()
    return result


def back(step: Step, held: Held) -> Held:
    """The same of gradients: the forward of the converse."""
    at = step.attributes
    converse = {"enter": "sum", "sum": "enter", "scatter": "gather", "gather": "slice", "gather_entered": "scatter",
                "slice": "gather", "exchange": "exchange"}  # fmt: skip
    turned = {"source": at["target"], "target": at["source"]} if step.form == "exchange" else at
    return run(Step(converse[step.form], step.axis, {}, turned), held)


def cut() -> st.SearchStrategy[Part]:
    return st.builds(Part, st.integers(0, 1), st.sampled_from([1, 2, 3]))


@pytest.mark.slow
@given(
    before=st.dictionaries(st.sampled_from("ab"), cut() | st.just("partial")),
    after=st.dictionaries(st.sampled_from("ab"), cut()),
    entered=st.sets(st.sampled_from("ab")),
)
# Along b the value is whole on the way, is cut again, and is whole at the end: its gradient is summed there alone.
@example(before={"b": Part(1, 3)}, after={"a": Part(1, 3)}, entered={"b"})
@settings(max_examples=400, deadline=None)
def test_every_device_ends_with_its_part_and_its_gradient(before: State, after: State, entered: set[str]) -> None:
    assume(nests(before, SIZES) and nests(after, SIZES))
    assume(all(local * SIZES[axis] for axis in SIZES for local in local_shape(SHAPE, before, SIZES)))
    for state in (before, after):
        for axis, part in state.items():
            if isinstance(part, Part):
                assume(SHAPE[part.dim] % (part.parts * SIZES[axis]) == 0)
    entered = entered - set(after)
    whole = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    held = begin(whole, before)
    found = steps(SHAPE, before, after, entered, SIZES)
    for step in found:
        held = run(step, held)
        shape = local_shape(SHAPE, step.after, SIZES)
        assert all(value.shape == shape for value in held.values())
        assert step.attributes.get("size") in (None, shape[step.attributes.get("dim", 0)])
    for place, value in held.items():
        assert np.array_equal(value, mine(whole, after, place))
    # Of what is read whole by ops that work on pieces each device has an addend of the gradient.
    gradient = whole[::-1, ::-1]
    held = begin(gradient, {**after, **dict.fromkeys(entered, "partial")})
    for step in reversed(found):
        held = back(step, held)
    for place, value in held.items():
        assert np.array_equal(value, mine(gradient, before, place))


@pytest.mark.parametrize(
    ("before", "after", "entered", "forms"),
    [
        ({"a": "partial"}, {}, (), ["sum"]),
        ({"a": "partial"}, {"a": Part(0)}, (), ["scatter"]),
        ({"a": Part(0)}, {}, (), ["gather"]),
        ({"a": Part(0)}, {}, ("a",), ["gather_entered"]),
        ({}, {}, ("a",), ["enter"]),
        ({}, {"a": Part(1)}, (), ["slice"]),
        ({"a": Part(0)}, {"a": Part(1)}, (), ["exchange"]),
        ({"a": Part(0)}, {"a": Part(0)}, (), []),
        # Of pieces that lie otherwise none can be kept.
        ({"a": Part(0, 2)}, {"a": Part(0)}, (), ["gather", "slice"]),
        # What is left of a sum is added up in pieces.
        ({"a": "partial", "b": "partial"}, {"a": Part(0)}, (), ["scatter", "sum"]),
        # Through whole values more would be sent, and held.
        ({"a": Part(0), "b": Part(1)}, {"a": Part(1), "b": Part(0)}, (), ["exchange"] * 4),
    ],
)
def test_the_way_of_fewest_bytes(before: State, after: State, entered: tuple[str, ...], forms: list[str]) -> None:
    assert [step.form for step in steps(SHAPE, before, after, entered, SIZES)] == forms


@pytest.mark.parametrize(
    ("before", "after", "forms"),
    [
        ({"a": "partial", "b": "partial"}, {"a": Part(0)}, [("sum", "b"), ("scatter", "a")]),
        ({"a": Part(1), "b": Part(0)}, {"a": Part(0)}, [("gather", "b"), ("exchange", "a")]),
        ({"a": "partial"}, {"b": Part(0)}, [("sum", "a"), ("slice", "b")]),
        ({"a": Part(1), "b": Part(0)}, {"b": Part(0)}, [("gather", "a")]),
    ],
)
def test_turns_are_put_together_first_and_cut_last(before: State, after: State, forms: list[tuple[str, str]]) -> None:
    found = steps(SHAPE, before, after, (), SIZES, turns=("b",))
    assert [(step.form, step.axis) for step in found] == forms
