"""Materialising views: 2,000 random redistributions on virtual devices against NumPy, and tables of what goes where."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from partita.errors import PlanError
from partita.redistribution import View
from partita.redistribution.view import intersection, said
from tests.redistribution.cases import Case, any_case, index
from tests.redistribution.cover import require_cover
from tests.redistribution.materialise import Take, materialise
from tests.redistribution.reference import redistribute_numpy


@pytest.mark.slow
def test_2000_random_redistributions_are_what_numpy_cuts_and_adds() -> None:
    random = Random(6)
    met: Counter[str] = Counter()
    for _ in range(2000):
        case = any_case(random)
        found = iter(redistribute_numpy("x", case.producers, case.consumers))
        for group in case.sets:
            arrays = [next(found) for _ in group]
            assert all(array.shape == view.shape for array, (_, view) in zip(arrays, group, strict=True))
            np.testing.assert_array_equal(sum(arrays[1:], arrays[0]), case.whole[index(group[0][1].intervals)])
        met.update(kinds(case))
    # The drawing is one, so that this can't silently come to draw easy cases alone.
    assert min(met[kind] for kind in KINDS) >= 100, met


KINDS = (
    "sum made",
    "sum wanted",
    "sums of other sizes",
    "uneven",
    "empty",
    "scalar",
    "overlapping",
    "mixed",
    "replicas",
)


def kinds(case: Case) -> set[str]:
    made, wanted = [view for _, view, _ in case.producers], [view for _, view in case.consumers]
    n, m = {view.n for view in made}, {view.n for view in wanted}
    found = {
        "sum made": max(n, default=1) > 1,
        "sum wanted": max(m) > 1,
        "sums of other sizes": min(n, default=1) > 1 and min(m) > 1 and n != m,
        "uneven": len({view.shape for view in made}) > 1,
        "empty": any(not view.elements for view in (*made, *wanted)),
        "scalar": case.whole.ndim == 0,
        "overlapping": any(
            a.intervals != b.intervals and intersection(a.intervals, b.intervals) for a in made for b in made
        ),
        "mixed": len(n) > 1,
        "replicas": len(set(made)) < len(made),
    }
    return {name for name, holds in found.items() if holds}


def test_a_producer_less_is_found_where_it_lacks_and_only_there() -> None:
    """Against counting, element by element, which sums are complete."""
    random = Random(7)
    verdicts: Counter[bool] = Counter()
    for _ in range(600):
        case = any_case(random)
        if not case.producers:
            continue
        gone = random.randrange(len(case.producers))
        made = [(device, view) for device, view, _ in (*case.producers[:gone], *case.producers[gone + 1 :])]
        complete = np.zeros(case.whole.shape, dtype=bool)
        for n in {view.n for _, view in made}:
            parts = np.zeros((n, *case.whole.shape), dtype=bool)
            for view in (view for _, view in made if view.n == n):
                parts[view.k, *index(view.intervals)] = True
            complete |= parts.all(axis=0)
        for device, view in (consumer for consumer in case.consumers if consumer[1].n == 1):
            enough = bool(complete[index(view.intervals)].all())
            verdicts[enough] += 1
            if enough:
                materialise("x", made, [(device, view)])
                continue
            with pytest.raises(PlanError, match=f'^tensor "x": device {device} wants .* but nobody made') as error:
                materialise("x", made, [(device, view)])
            region = re.search(r"nobody made (?:part \d of \d of )?(.*?)(?: \(and .*)?$", str(error.value))
            box = tuple((int(a), int(b)) for a, b in re.findall(r"\[(\d+), (\d+)\)", region[1]))
            assert not complete[index(box)].any()
            assert view.contains(View(box))
    assert min(verdicts[True], verdicts[False]) >= 100, verdicts


def box(*intervals: tuple[int, int]) -> View:
    return View(intervals)


def part(k: int, n: int, *intervals: tuple[int, int]) -> View:
    return View(intervals, k, n)


# Producers, a consumer, and of each take: source, the elements of the tensor, whether it is added.
TAKES = [
    ("its own", [(0, box((0, 4))), (1, box((0, 4)))], (1, box((1, 3))), [(1, "[1, 3)", False)]),
    ("its own first", [(0, box((0, 6))), (1, box((2, 4)))], (1, box((1, 4))),
     [(1, "[2, 4)", False), (0, "[1, 2)", False)]),
    ("few sources", [(0, box((0, 3))), (1, box((2, 5))), (2, box((0, 5)))], (9, box((0, 5))), [(2, "[0, 5)", False)]),
    ("two windows", [(0, box((0, 5))), (1, box((3, 8)))], (2, box((2, 7))),
     [(1, "[3, 7)", False), (0, "[2, 3)", False)]),
    ("what most is left of", [(0, box((0, 6))), (1, box((2, 7))), (2, box((6, 10)))], (3, box((0, 10))),
     [(0, "[0, 6)", False), (2, "[6, 10)", False)]),
    ("a sum in order", [(1, part(1, 2, (0, 2))), (0, part(0, 2, (0, 2)))], (1, box((0, 2))),
     [(0, "[0, 2)", False), (1, "[0, 2)", True)]),
    ("a part is kept", [(0, part(0, 2, (0, 2))), (1, part(1, 2, (0, 2)))], (5, part(1, 2, (0, 2))),
     [(1, "[0, 2)", False)]),
    ("parts of four for two", [(k, part(k, 4, (0, 2))) for k in range(4)], (9, part(1, 2, (0, 2))),
     [(2, "[0, 2)", False), (3, "[0, 2)", True)]),
    ("a whole is the first part", [(0, box((0, 2)))], (1, part(0, 2, (0, 2))), [(0, "[0, 2)", False)]),
    ("and no other", [(0, box((0, 2)))], (1, part(1, 2, (0, 2))), []),
    ("a sum here, a whole there", [(0, part(0, 2, (0, 2))), (1, part(1, 2, (0, 2))), (2, box((2, 3)))],
     (3, box((1, 3))), [(2, "[2, 3)", False), (0, "[1, 2)", False), (1, "[1, 2)", True)]),
    ("a scalar", [(0, part(0, 2)), (1, part(1, 2))], (2, box()), [(0, "the scalar", False), (1, "the scalar", True)]),
    ("nothing of an empty shard", [(0, box((0, 4)))], (1, box((2, 2))), []),
]  # fmt: skip


@pytest.mark.parametrize(("producers", "consumer", "wanted"), [row[1:] for row in TAKES], ids=[row[0] for row in TAKES])
def test_what_is_taken(producers: list, consumer: tuple[int, View], wanted: list) -> None:
    (takes,) = materialise("x", producers, [consumer])
    assert [(take.source, said(take.region), take.add) for take in takes] == wanted
    require_cover("x", *consumer, takes)


def test_boxes_count_from_the_arrays() -> None:
    (takes,) = materialise("x", [(0, box((4, 8), (2, 3)))], [(1, box((5, 7), (2, 3)))])
    assert takes == (Take(0, box((4, 8), (2, 3)), ((1, 3), (0, 1)), ((0, 2), (0, 1)), False),)


def test_each_replica_has_its_own_readers() -> None:
    whole = [(device, box((0, 4))) for device in range(4)]
    readers = [(device, box((0, 4))) for device in range(8, 16)]
    assert [takes[0].source for takes in materialise("x", whole, readers)] == [0, 1, 2, 3, 0, 1, 2, 3]


REFUSED = [
    ([(0, box((0, 2))), (1, box((3, 4)))], box((0, 4)), r"wants \[0, 4\), but nobody made \[2, 3\)"),
    ([], box((0, 4), (0, 2)), r"nobody made \[0, 4\) × \[0, 2\)"),
    ([(0, box((1, 3)))], box((0, 4)), r"nobody made \[0, 1\) \(and 1 regions more\)"),
    ([(0, part(0, 2, (0, 4))), (1, part(1, 2, (0, 3)))], box((0, 4)), r"nobody made part 1 of 2 of \[3, 4\)"),
    ([(1, part(1, 2, (0, 3)))], box((0, 3)), r"nobody made part 0 of 2 of \[0, 3\)"),
    ([(0, box((0, 4))), (1, part(0, 2, (2, 6))), (2, part(1, 2, (2, 6)))], box((0, 6)),
     r"\[2, 4\) was made whole and as parts of 2: it is doubled"),
    ([(k, part(k, n, (0, 1))) for n in (2, 3) for k in range(n)], box((0, 1)), "as parts of 2 and as parts of 3"),
    ([(0, box((0, 4), (0, 4)))], box((0, 4)), "views of 1 and of 2 dims"),
]  # fmt: skip


@pytest.mark.parametrize(("producers", "wanted", "fact"), REFUSED)
def test_what_nobody_made_or_made_twice(producers: list, wanted: View, fact: str) -> None:
    with pytest.raises(PlanError, match=f'tensor "h": .*{fact}'):
        materialise("h", producers, [(7, wanted)])


@pytest.mark.parametrize(("intervals", "k", "n"), [(((3, 2),), 0, 1), (((-1, 2),), 0, 1), ((), 2, 2), ((), -1, 2)])
def test_no_such_view(intervals: tuple, k: int, n: int) -> None:
    with pytest.raises(PlanError, match=r"a view (is|of) "):
        View(intervals, k, n)


def take(view: View, start: int, stop: int, add: bool = False, into: int | None = None) -> Take:
    """Elements [start, stop) of a view, to where they belong in [0, 4) or to ``into``."""
    at = start if into is None else into
    return Take(5, view, view.local(((start, stop),)), ((at, at + stop - start),), add)


HALVES = [part(0, 2, (0, 4)), part(1, 2, (0, 4))]

WRONG = [
    ([take(box((0, 4)), 0, 3)], r"\[3, 4\) is missing"),
    ([], r"\[0, 4\) is missing"),
    ([take(HALVES[0], 0, 4), take(HALVES[1], 1, 4, add=True)], r"part 1 of 2 of \[0, 1\) is missing"),
    ([take(HALVES[1], 0, 4)], r"part 0 of 2 of \[0, 4\) is missing"),
    ([take(box((0, 4)), 0, 4), take(box((2, 4)), 2, 4, add=True)], r"\[2, 4\) is counted 2 times"),
    ([take(HALVES[0], 0, 4), take(HALVES[1], 0, 4, add=True), take(HALVES[1], 1, 2, add=True)],
     r"part 1 of 2 of \[1, 2\) is counted 2 times"),
    ([take(box((0, 4)), 0, 4), take(HALVES[0], 1, 3, add=True), take(HALVES[1], 1, 3, add=True)],
     r"\[1, 3\) is counted whole and as parts of 2"),
    ([take(box((0, 4)), 0, 4), take(box((0, 4)), 2, 4)], r"\[2, 4\) from device 5 is written over what came before"),
    ([take(box((0, 4)), 0, 2), take(box((0, 4)), 1, 4)], r"\[1, 4\) from device 5 is written over what came before"),
    ([take(HALVES[0], 0, 3), take(HALVES[1], 0, 4, add=True)], r"\[0, 4\) from device 5 is added to what nobody wrote"),
    ([take(box((0, 4)), 0, 3, into=1)], r"\[0, 3\) is written to \[1, 4\): a wrong offset"),
    ([take(box((1, 4)), 0, 2)], r"\[0, 2\) is outside of what device 5 has, \[1, 4\)"),
    ([take(box((0, 9)), 2, 6)], r"\[2, 6\) is outside of what it wants"),
]  # fmt: skip


@pytest.mark.parametrize(("takes", "fact"), WRONG)
def test_what_the_proof_says(takes: list[Take], fact: str) -> None:
    with pytest.raises(PlanError, match=rf'^tensor "h": device 7 wants \[0, 4\), but {fact}$'):
        require_cover("h", 7, box((0, 4)), takes)


def test_a_part_that_another_device_has() -> None:
    with pytest.raises(PlanError, match=r"part 1 of 2 of \[0, 4\) is counted although another device's part has it"):
        require_cover("h", 7, HALVES[0], [take(HALVES[0], 0, 4), take(HALVES[1], 0, 4, add=True)])


@pytest.mark.slow
def test_wrong_takes_are_rejected() -> None:
    """Six ways to spoil right takes, wherever they apply; the name of the tensor is said each time."""
    random = Random(8)
    rejected: Counter[str] = Counter()
    for _ in range(400):
        case = any_case(random)
        made = [(device, view) for device, view, _ in case.producers]
        for (device, view), takes in zip(case.consumers, materialise("x", made, case.consumers), strict=True):
            require_cover("x", device, view, takes)
            for kind, spoilt in mutants(random, list(takes)):
                # Part of a sum: from the takes alone it isn't known whether the rest is zero or of how many it is.
                if kind in ("lost", "part") and view.n > 1:
                    continue
                with pytest.raises(PlanError, match=f'tensor "x": device {device} wants'):
                    require_cover("x", device, view, spoilt)
                rejected[kind] += 1
    assert min(rejected[kind] for kind in ("lost", "doubled", "added twice", "shifted", "first added", "part")) >= 50


def mutants(random: Random, takes: list[Take]) -> list[tuple[str, list[Take]]]:
    if not takes:
        return []
    at = random.randrange(len(takes))
    take, rest = takes[at], [*takes[:at], *takes[at + 1 :]]
    found = [
        ("lost", rest),
        ("doubled", [*takes, replace(take, add=False)]),
        ("added twice", [*takes, replace(take, add=True)]),
        ("first added", [replace(takes[0], add=True), *takes[1:]]),
        (
            "part",
            [*takes[:at], replace(take, view=replace(take.view, k=take.view.n, n=take.view.n + 1)), *takes[at + 1 :]],
        ),
    ]
    if take.into:
        (start, stop), *others = take.into
        found.append(("shifted", [*takes[:at], replace(take, into=((start + 1, stop + 1), *others)), *takes[at + 1 :]]))
    return found
