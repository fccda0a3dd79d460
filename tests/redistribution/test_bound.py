"""The lower bound: against all schemes there are, on two and three devices; closed formulas; counts by hand."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import pytest

from partita.redistribution import ArrayType, Layout, Mesh
from partita.redistribution.bound import lower_bound
from partita.redistribution.search import redistribution
from tests.redistribution.problems import any_problem, pair

KNOWN = [
    ("x=4,y=2", (16, 16, 16), "y,-,x", "-,x.y,-", 448),
    ("x=2,y=4", (64, 64), "x,y", "y,x", 512),
    ("x=2,y=2,z=2", (8, 8, 8), "x.y.z,-,-", "-,x.y.z,-", 56),
    ("x=2,y=2,z=2", (8, 8, 8), "x.z,y,-", "y.z,x,-", 64),
    ("x=2,y=2,z=2", (8, 8, 8), "x,y,z", "z,y,x", 64),
    ("x=2,y=2,z=2", (8, 8, 8), "z,x,-", "y.z,-,-", 128),
    ("dp=2,tp=2", (4, 1), "tp.dp,-", "dp.tp,-", 1),
    ("a=4", (5, 10), "a,-", "-,-", 50),
    ("a=4", (4, 16, 8), "a,-,-", "-,a,-", 96),
    # Sums of k parts: (k − 1)/k of the array to have pieces, twice that to have it everywhere.
    ("a=4", (16,), "-+a", "a", 12),
    ("a=4", (16,), "-+a", "-", 24),
    ("a=2,b=2", (16,), "-+a.b", "-", 24),
    # Along b devices hold the same: they share the work.
    ("a=2,b=2", (16,), "-+a", "-", 16),
    ("a=2,b=2", (16,), "-+a", "a.b", 4),
    # A part of a sum may stay where it is.
    ("a=2,b=2", (16,), "b+a", "b+a", 0),
]


@pytest.mark.parametrize(("mesh", "shape", "source", "target", "elements"), KNOWN)
def test_known(mesh: str, shape: tuple[int, ...], source: str, target: str, elements: int) -> None:
    assert lower_bound(*pair(mesh, shape, source, target)) == elements


@pytest.mark.parametrize(
    ("devices", "elements"),
    [((4, 5), 32), ((0, 1), 24), ((2, 7), 32)],
)
def test_between_meshes(devices: tuple[int, int], elements: int) -> None:
    source = ArrayType((8, 8), Layout.parse("a,-"), Mesh.of(a=4))
    target = ArrayType((8, 8), Layout.parse("-,b"), Mesh.of(devices, b=2))
    assert lower_bound(source, target) == elements


def least_of_all_schemes(source: ArrayType, target: ArrayType) -> int:
    """The least b with a scheme in which no device sends or receives more than b elements, whatever the messages.

    What a device can make of an element is a set of sums of parts, each part once; a message is one of them.
    """
    devices = sorted({*source.mesh.devices, *target.mesh.devices})
    points = list(product(*(range(size) for size in source.shape)))
    parts = source.mesh.size(source.layout.partial)

    def inside(kind: ArrayType, place: int, point: tuple[int, ...]) -> bool:
        return all(a <= at < b for (a, b), at in zip(kind.boxes[place].tolist(), point, strict=True))

    held: dict[tuple[int, int], frozenset[int]] = {}
    wanted: set[tuple[int, int]] = set()
    for (place, device), (number, point) in product(enumerate(source.mesh.devices), enumerate(points)):
        if inside(source, place, point):
            held[device, number] = frozenset({1 << int(source.parts[place])})
    for (place, device), (number, point) in product(enumerate(target.mesh.devices), enumerate(points)):
        if inside(target, place, point):
            wanted.add((device, number))
    keys = list(product(devices, range(len(points))))
    start = tuple(held.get(key, frozenset()) for key in keys)
    complete = (1 << parts) - 1

    def possible(most: int) -> bool:
        @cache
        def go(state: tuple[frozenset[int], ...], sent: tuple[int, ...], received: tuple[int, ...]) -> bool:
            if all(complete in state[keys.index(key)] for key in wanted):
                return True
            for (giver, one), (taker, two) in product(enumerate(devices), repeat=2):
                if giver == taker or sent[giver] == most or received[taker] == most:
                    continue
                for number in range(len(points)):
                    at = keys.index((two, number))
                    for message in state[keys.index((one, number))] - state[at]:
                        has = state[at]
                        more = has | {message} | {message | other for other in has if not message & other}
                        after = (*state[:at], frozenset(more), *state[at + 1 :])
                        if go(after, _added(sent, giver), _added(received, taker)):
                            return True
            return False

        none = (0,) * len(devices)
        return go(start, none, none)

    return next(most for most in range(100) if possible(most))


def _added(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*counts[:index], counts[index] + 1, *counts[index + 1 :])


SMALL = [
    ("a=2", (2,), "a", "-"), ("a=2", (3,), "a", "-"), ("a=2", (2,), "-", "a"), ("a=2", (2, 2), "a,-", "-,a"),
    ("a=3", (3,), "a", "-"), ("a=3", (2,), "a", "-"), ("a=2", (2,), "-+a", "a"), ("a=2", (2,), "-+a", "-"),
    ("a=2", (1,), "-+a", "-"), ("a=3", (1,), "-+a", "-"), ("a=3", (1,), "-+a", "a"), ("a=3", (2,), "-+a", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("mesh", "shape", "source", "target"), SMALL)
def test_all_schemes_on_few_devices(mesh: str, shape: tuple[int, ...], source: str, target: str) -> None:
    """No scheme has less than the bound, and here some scheme has as much."""
    types = pair(mesh, shape, source, target)
    assert lower_bound(*types) == least_of_all_schemes(*types)


@pytest.mark.parametrize(
    ("source", "target", "devices"),
    [("-", "-", (1, 2)), ("-", "b", (1, 2)), ("-", "-", (0, 1)), ("-", "b", (0, 1))],
)
def test_all_schemes_from_one_device(source: str, target: str, devices: tuple[int, int]) -> None:
    one = ArrayType((2,), Layout.parse(source), Mesh.of(a=1))
    two = ArrayType((2,), Layout.parse(target), Mesh.of(devices, b=2))
    assert lower_bound(one, two) == least_of_all_schemes(one, two)


def test_what_is_received_and_sent_counted_one_by_one() -> None:
    """Sums apart, against sets of elements."""
    random = Random(5)
    for _ in range(300):
        problem = any_problem(random, sums=False)
        source, target = problem.source, problem.target
        points = list(product(*(range(size) for size in source.shape)))[:400]
        if len(points) == 400:
            continue

        def held(kind: ArrayType, points: list[tuple[int, ...]] = points) -> dict[int, set[tuple[int, ...]]]:
            return {
                device: {
                    point for point in points
                    if all(a <= at < b for (a, b), at in zip(kind.boxes[place].tolist(), point, strict=True))
                }
                for place, device in enumerate(kind.mesh.devices)
            }  # fmt: skip

        has, wants = held(source), held(target)
        most = max(len(wants[device] - has.get(device, set())) for device in wants)
        for tile in set(source.tiles.tolist()):
            holders = [source.mesh.devices[place] for place in (source.tiles == tile).nonzero()[0]]
            outside = [wants[device] for device in wants if device not in holders]
            sent = has[holders[0]] & set().union(*outside)
            most = max(most, -(-len(sent) // len(holders)))
        assert lower_bound(source, target) == most, str(problem)


def test_reached_where_all_is_even() -> None:
    """On one tier the fewest bytes are as many as the bound."""
    random, equal = Random(6), 0
    for _ in range(150):
        problem = any_problem(random, sums=False, even=True, one_mesh=True)
        answer = redistribution(problem.source, problem.target, 2, objective="bytes")
        equal += answer.bytes_per_device == answer.lower_bound_bytes
        assert answer.optimal == (answer.bytes_per_device == answer.lower_bound_bytes)
    assert equal >= 149
