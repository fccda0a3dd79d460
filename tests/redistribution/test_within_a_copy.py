"""The collectives between two states of a value inside a copy, done on NumPy arrays: after each, every device must have
what the state says, found there by indices and by ``materialise``."""

from __future__ import annotations

import itertools
from collections import Counter
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from partita.redistribution import View
from partita.spacetime.convert import Step, steps
from partita.spacetime.parts import Part, State, nests, outer_first
from tests.redistribution.reference import redistribute_numpy

Arrays = list[np.ndarray]


@pytest.mark.slow
def test_500_random_ways_are_what_numpy_cuts_and_adds() -> None:
    random = Random(9)
    met: Counter[str] = Counter()
    while met["ways"] < 500:
        axes = dict(zip("abc", random.choices([2, 3], k=random.randint(1, 3)), strict=False))
        shape = tuple(random.choices([12, 24, 36], k=random.randint(1, 2)))
        before, after = any_state(random, shape, axes, sums=True), any_state(random, shape, axes, sums=False)
        entered = [axis for axis in axes if axis not in after and random.random() < 0.3]
        whole = np.array(random.choices(range(-99, 100), k=prod(shape)), dtype="float64").reshape(shape)
        arrays = held(random, whole, before, axes)
        for step in steps(shape, before, after, entered, axes):
            arrays = done(step, arrays, axes)
            met[step.form] += 1
            assert [array.shape for array in arrays] == [part.shape for part in held(random, whole, step.after, axes)]
        for array, wanted in zip(arrays, held(random, whole, after, axes), strict=True):
            np.testing.assert_array_equal(array, wanted)
        if met["ways"] % 5 == 0:
            the_same_by_views(random, whole, before, after, axes)
        met["ways"] += 1
    assert min(met[form] for form in ("enter", "sum", "scatter", "gather", "gather_entered", "slice", "exchange")) >= 20


def any_state(random: Random, shape: tuple[int, ...], axes: dict[str, int], sums: bool) -> State:
    """Some axes cut dims, one inside another where they cut the same; some hold a partial sum."""
    while True:
        state: dict[str, Any] = {}
        for axis in random.sample(list(axes), len(axes)):
            kind = random.choice(["whole", "cut", "cut", "partial" if sums else "cut"])
            if kind == "partial":
                state[axis] = "partial"
            elif kind == "cut":
                dim = random.randrange(len(shape))
                outer = [p.parts * axes[a] for a, p in state.items() if isinstance(p, Part) and p.dim == dim]
                state[axis] = Part(dim, max(outer, default=1) * random.choice([1, 1, 2]))
        cuts = [(axes[axis] * part.parts, part.dim) for axis, part in outer_first(state)]
        if nests(state, axes) and all(shape[dim] % pieces == 0 for pieces, dim in cuts):
            return state


def places(axes: dict[str, int]) -> list[dict[str, int]]:
    """Every device's coordinates, row-major."""
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*map(range, axes.values()))]


def indices(size: int, dim: int, state: State, axes: dict[str, int], at: dict[str, int]) -> list[int]:
    """The indices of a dim that a device has: of each of a cut's parts, its piece."""
    index, there = np.arange(size), np.ones(size, dtype=bool)
    for axis, part in outer_first(state):
        if part.dim == dim:
            each = size // part.parts
            there &= index % each // (each // axes[axis]) == at[axis]
    return index[there].tolist()


def held(random: Random, whole: np.ndarray, state: State, axes: dict[str, int]) -> Arrays:
    """What each device has; addends of a partial sum are drawn anew."""
    sums = [axis for axis in axes if state.get(axis) == "partial"]
    addends = {}
    for point in itertools.product(*(range(axes[axis]) for axis in sums)):
        addends[point] = np.array(random.choices(range(-9, 10), k=whole.size), dtype="float64").reshape(whole.shape)
    last = next(reversed(addends))
    addends[last] = whole - sum(array for point, array in addends.items() if point != last)
    return [
        addends[tuple(at[axis] for axis in sums)][
            np.ix_(*(indices(size, dim, state, axes, at) for dim, size in enumerate(whole.shape)))
        ]
        for at in places(axes)
    ]


def done(step: Step, arrays: Arrays, axes: dict[str, int]) -> Arrays:
    """One collective, in the groups of devices that differ along its axis alone."""
    found: Arrays = [np.empty(0)] * len(arrays)
    count = axes[step.axis]
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, at in enumerate(places(axes)):
        groups.setdefault(tuple(c for axis, c in at.items() if axis != step.axis), []).append(device)
    for group in groups.values():
        own = [arrays[device] for device in group]
        for rank, device in enumerate(group):
            found[device] = in_group(step, own, rank, count)
    return found


def in_group(step: Step, own: Arrays, rank: int, count: int) -> np.ndarray:
    at = step.attributes
    match step.form:
        case "enter":
            return own[rank]
        case "sum":
            return sum(own[1:], own[0])
        case "scatter":
            return piece(sum(own[1:], own[0]), at["dim"], at["parts"], rank, count)
        case "slice":
            return piece(own[rank], at["dim"], at["parts"], rank, count)
        case "gather" | "gather_entered":
            made = together(own, at["dim"], at["parts"])
            assert made.shape[at["dim"]] == at["size"]
            return made
        case "exchange":
            source, target = at["source"], at["target"]
            mine = [piece(array, target["dim"], target["parts"], rank, count) for array in own]
            return together(mine, source["dim"], source["parts"])
    raise AssertionError(step.form)


def piece(array: np.ndarray, dim: int, parts: int, rank: int, count: int) -> np.ndarray:
    """Of each of the parts of a dim the piece of that rank."""
    return np.concatenate(
        [np.split(part, count, axis=dim)[rank] for part in np.split(array, parts, axis=dim)], axis=dim
    )


def together(own: Arrays, dim: int, parts: int) -> np.ndarray:
    """Every part from the pieces of all."""
    split = [np.split(array, parts, axis=dim) for array in own]
    return np.concatenate([pieces[part] for part in range(parts) for pieces in split], axis=dim)


def the_same_by_views(random: Random, whole: np.ndarray, before: State, after: State, axes: dict[str, int]) -> None:
    """Producers and consumers as general views: a device has one for each run of indices."""
    sums = [axis for axis in axes if before.get(axis) == "partial"]
    n = prod(axes[axis] for axis in sums)
    made = []
    for device, (at, array) in enumerate(zip(places(axes), held(random, whole, before, axes), strict=True)):
        k = 0
        for axis in sums:
            k = k * axes[axis] + at[axis]
        for box, local in runs(whole.shape, before, axes, at):
            made.append((device, View(box, k, n), array[local]))
    consumers = [
        (device, View(box)) for device, at in enumerate(places(axes)) for box, _ in runs(whole.shape, after, axes, at)
    ]
    for (_, view), array in zip(consumers, redistribute_numpy("x", made, consumers), strict=True):
        np.testing.assert_array_equal(array, whole[tuple(slice(*interval) for interval in view.intervals)])


def runs(shape: tuple[int, ...], state: State, axes: dict[str, int], at: dict[str, int]) -> list[tuple[Any, Any]]:
    """(box of the tensor, slices of the device's array) for every run of consecutive indices."""
    dims = []
    for dim, size in enumerate(shape):
        own = indices(size, dim, state, axes, at)
        starts = [i for i, index in enumerate(own) if i == 0 or own[i - 1] + 1 != index]
        dims.append([((own[a], own[b - 1] + 1), slice(a, b)) for a, b in itertools.pairwise([*starts, len(own)])])
    return [(tuple(i for i, _ in found), tuple(s for _, s in found)) for found in itertools.product(*dims)]
