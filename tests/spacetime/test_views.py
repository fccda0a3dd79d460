"""Values between stages of other copies, against views materialised one by one; gradients of views, against sums."""

from __future__ import annotations

import time
from collections import Counter
from math import prod
from random import Random

import numpy as np
import pytest

from partita.errors import PlanError
from partita.redistribution import View
from partita.spacetime.communication import Meshes
from partita.spacetime.program import Place
from partita.spacetime.views import (
    Arrival,
    Copies,
    copies_of,
    gradient_views,
    leaving,
    replicas_arriving,
    require_samples,
    samples_arriving,
    sums_arriving,
)
from tests.redistribution.cases import any_case, index
from tests.redistribution.materialise import materialise
from tests.redistribution.reference import redistribute_numpy

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow

ONE, TWO, FOUR = ((0,),), ((0,), (1,)), ((0,), (1,), (2,), (3,))

# Samples of a turn, copies that have them, copies that want them; of each device: source and samples.
SAMPLES = [
    (4, TWO, ((2,), (3,)), {2: [(0, 0, 2)], 3: [(1, 2, 4)]}),
    (4, ((0, 1), (2, 3)), ((4, 5), (6, 7)), {4: [(0, 0, 2)], 5: [(1, 0, 2)], 6: [(2, 2, 4)], 7: [(3, 2, 4)]}),
    (4, ONE, ((1,), (2,)), {1: [(0, 0, 2)], 2: [(0, 2, 4)]}),
    (4, FOUR, ((8, 9),), {8: [(i, i, i + 1) for i in range(4)], 9: [(i, i, i + 1) for i in range(4)]}),
    (6, TWO, ((5,), (6,), (7,)), {5: [(0, 0, 2)], 6: [(0, 2, 3), (1, 3, 4)], 7: [(1, 4, 6)]}),
    (6, ((0,), (1,), (2,)), TWO, {0: [(0, 0, 2), (1, 2, 3)], 1: [(1, 3, 4), (2, 4, 6)]}),
    (2, ((0, 1, 2, 3),), ((4, 5), (6, 7)), {4: [(0, 0, 1)], 5: [(1, 0, 1)], 6: [(2, 1, 2)], 7: [(3, 1, 2)]}),
    (1, ((0, 1),), ((4, 5, 6, 7),), {4: [(0, 0, 1)], 5: [(1, 0, 1)], 6: [(0, 0, 1)], 7: [(1, 0, 1)]}),
    (2, ((0, 1),), ((1, 0),), {1: [(1, 0, 2)], 0: [(0, 0, 2)]}),
]


@pytest.mark.parametrize(("samples", "sources", "targets", "wanted"), SAMPLES)
def test_where_samples_come_from(samples: int, sources: Copies, targets: Copies, wanted: dict) -> None:
    found = samples_arriving(samples, sources, targets)
    assert found == {d: tuple(Arrival(s, (a, b)) for s, a, b in rows) for d, rows in wanted.items()}


def any_copies(random: Random, dp: int) -> Copies:
    return copies_of(random.sample(range(16), dp * random.choice([1, 2, 4] if dp <= 4 else [1, 2])), dp)


def sample_views(samples: int, copies: Copies) -> list[tuple[int, View]]:
    each = samples // len(copies)
    return [(d, View(((i * each, (i + 1) * each),))) for i, devices in enumerate(copies) for d in devices]


def test_samples_are_what_materialise_finds_and_a_device_keeps_its_own() -> None:
    random = Random(3)
    crossed: Counter[str] = Counter()
    for _ in range(400):
        dp, other = (random.choice([1, 2, 3, 4, 6]) for _ in range(2))
        samples = 12 * random.randint(1, 2)
        sources, targets = any_copies(random, dp), any_copies(random, other)
        arriving = samples_arriving(samples, sources, targets)
        held = dict(sample_views(samples, sources))
        wanted = sample_views(samples, targets)
        takes = materialise("h", list(held.items()), wanted)
        for (device, view), found in zip(wanted, takes, strict=True):
            pieces = [(arrival.interval, arrival.source) for arrival in arriving[device]]
            assert [interval for interval, _ in pieces] == sorted(take.region[0] for take in found)
            require_samples("h", device, view.intervals[0], [interval for interval, _ in pieces])
            for interval, source in pieces:
                assert held[source].contains(View((interval,)))
                own = device in held and held[device].contains(View((interval,)))
                assert own == (source == device)
                crossed["own" if own else "sent"] += 1
    assert min(crossed.values()) > 100


def test_equal_stages_send_to_the_device_of_the_same_number_and_all_replicas_take_part() -> None:
    for dp, width in ((1, 4), (4, 1), (2, 3)):
        sources, targets = (copies_of(range(start, start + dp * width), dp) for start in (0, 100))
        arriving = samples_arriving(dp, sources, targets)
        assert {device: [a.source for a in found] for device, found in arriving.items()} == {
            100 + i: [i] for i in range(dp * width)
        }
        assert replicas_arriving(sources, targets) == {100 + i: (Arrival(i, None),) for i in range(dp * width)}
        assert sums_arriving(sources, targets) == replicas_arriving(sources, targets)
    whole, split = copies_of(range(8), 1), copies_of(range(8, 16), 8)
    for arriving in (samples_arriving(8, whole, split), replicas_arriving(whole, split)):
        assert [found[0].source for found in arriving.values()] == list(range(8))


@pytest.mark.parametrize("widths", [(1, 1), (4, 2), (2, 4), (3, 2)])
@pytest.mark.parametrize("shared", [0, 1, 2])
def test_where_copies_are_equal_the_peers_are_those_of_the_communication_model(widths: tuple, shared: int) -> None:
    dp = 2
    first, second = list(range(dp * widths[0])), list(range(100, 100 + dp * widths[1]))
    second[: min(shared, len(second))] = first[: min(shared, len(second))]
    places: dict[int, tuple[Place, ...]] = {}
    for stage, (devices, width) in enumerate(zip((first, second), widths, strict=True)):
        for at, device in enumerate(devices):
            places[device] = (*places.get(device, ()), Place(stage, at // width, at % width))
    meshes = Meshes(places, (first, second))
    arriving = samples_arriving(8, copies_of(first, dp), copies_of(second, dp))
    assert {device: [a.source for a in found] for device, found in arriving.items()} == {
        device: [meshes.source(device, 1, 0)] for device in second
    }
    sent = {source: [device for device, _ in found] for source, found in leaving(arriving).items()}
    readers = {device: [d for d in meshes.readers(device, 0, 1) if d != device] for device in first}
    assert sent == {device: found for device, found in readers.items() if found}


def test_what_leaves_is_what_arrives() -> None:
    arriving = samples_arriving(6, ((0, 1), (2, 3)), ((1, 4), (5, 6), (7, 3)))
    assert leaving(arriving) == {
        0: [(5, Arrival(0, (2, 3)))],
        1: [(4, Arrival(1, (0, 2))), (6, Arrival(1, (2, 3)))],
        2: [(5, Arrival(2, (3, 4))), (7, Arrival(2, (4, 6)))],
        3: [(6, Arrival(3, (3, 4)))],
    }


def test_copies_that_do_not_divide_the_samples() -> None:
    with pytest.raises(PlanError, match="3 data-parallel copies don't divide the 4 samples of a turn"):
        samples_arriving(4, TWO, ((0,), (1,), (2,)))
    with pytest.raises(PlanError, match="2 data-parallel copies don't divide the 1 samples"):
        samples_arriving(1, TWO, ONE)


@pytest.mark.parametrize(
    ("arriving", "fact"),
    [
        ([(2, 4), (5, 8)], r"samples \[4, 5\) never reach device 3, which takes \[2, 8\)"),
        ([(3, 8)], r"samples \[2, 3\) never reach"),
        ([(2, 7)], r"samples \[7, 8\) never reach"),
        ([], r"samples \[2, 8\) never reach"),
        ([(2, 6), (5, 8)], r"samples \[5, 6\) reach device 3, which takes \[2, 8\) twice"),
        ([(2, 8), (2, 8)], r"samples \[2, 8\) reach device 3.* twice"),
        ([(1, 8)], r"samples \[1, 8\) reach device 3, which takes \[2, 8\)$"),
        ([(2, 8), (8, 9)], r"samples \[8, 9\) reach device 3, which takes \[2, 8\)$"),
    ],
)
def test_samples_that_lack_or_come_twice(arriving: list, fact: str) -> None:
    with pytest.raises(PlanError, match=f'^tensor "h": {fact}'):
        require_samples("h", 3, (2, 8), arriving)


@pytest.mark.parametrize("made", [1, 2, 3, 4])
@pytest.mark.parametrize("wanted", [1, 2, 3, 4])
def test_a_gradient_without_samples_reaches_one_copy_once(made: int, wanted: int) -> None:
    """Each reader has a part of the sum; every device of one target copy gets the same parts, no part goes to two."""
    sources, targets = copies_of(range(2 * made), made), copies_of(range(10, 10 + 2 * wanted), wanted)
    arriving = sums_arriving(sources, targets)
    copy_of = {device: copy for copy, devices in enumerate(sources) for device in devices}
    parts = [[[copy_of[a.source] for a in arriving[device]] for device in devices] for devices in targets]
    assert all(found == group[0] for group in parts for found in group)
    assert sorted(part for group in parts for part in group[0]) == list(range(made))
    value = replicas_arriving(targets, sources)
    assert set(value) == set(copy_of)
    assert all(len(found) == 1 and found[0].source in arriving for found in value.values())


def test_one_of_many_copies_keeps_what_it_has() -> None:
    assert replicas_arriving(((0, 1), (2, 3)), ((3, 0), (5, 6))) == {
        3: (Arrival(3, None),), 0: (Arrival(0, None),), 5: (Arrival(2, None),), 6: (Arrival(3, None),)
    }  # fmt: skip


def test_1024_devices_are_linear() -> None:
    """Twice the devices, twice the arrivals, whatever the copies."""
    for dp, other in ((1024, 1), (1, 1024), (1024, 1024), (768, 1024)):
        counts = []
        for scale in (1, 2):
            sources, targets = (copies_of(range(n * scale), n * scale) for n in (dp, other))
            counts.append(sum(len(found) for found in samples_arriving(3 * 2048, sources, targets).values()))
        assert counts[1] <= 2 * counts[0]
        assert counts[0] <= 2 * 1024
    begin = time.process_time()
    materialise("h", sample_views(1024, copies_of(range(1024), 1024)), sample_views(1024, ((0,),)))
    assert time.process_time() - begin < 5, "a gather of 1,024 pieces took quadratic time"


def test_gradients_of_views_add_up_what_each_use_contributes() -> None:
    """Against adding each use's gradient to the array, for random views; makers of parts want the whole gradient."""
    random = Random(5)
    met: Counter[str] = Counter()
    for _ in range(600):
        case = any_case(random)
        uses, wanted = [], np.zeros_like(case.whole)
        for group in case.sets:
            if group[0][1].elements:
                # The gradient of a sum goes to each of its parts: they have it equal.
                gradient = np.array([random.randint(-9, 9) for _ in range(prod(group[0][1].shape))], dtype="float64")
                gradient = gradient.reshape(group[0][1].shape)
                wanted[index(group[0][1].intervals)] += gradient
                uses += [(device, view, gradient) for device, view in group]
        if not uses:
            continue
        pieces = gradient_views([view for _, view, _ in uses])
        made = [
            (device, piece, gradient[index(view.local(piece.intervals))])
            for (device, view, gradient), found in zip(uses, pieces, strict=True)
            for piece in found
        ]
        # Who makes a value wants the whole gradient of what it makes: here of what is used, and of a corner of it.
        makers = [(device, View(view.intervals)) for device, view, _ in uses]
        makers += [(9, View(tuple((a, a + 1) for a, _ in view.intervals))) for _, view, _ in uses]
        for (_, view), array in zip(makers, redistribute_numpy("gradient", made, makers), strict=True):
            np.testing.assert_array_equal(array, wanted[index(view.intervals)])
        met["divided"] += any(len(found) > 1 for found in pieces)
        met["summed"] += any(piece.n > 1 for found in pieces for piece in found)
        met["of a sum"] += any(view.n > 1 for _, view, _ in uses)
    assert min(met.values()) >= 50, met


def v(start: int, stop: int, k: int = 0, n: int = 1) -> View:
    return View(((start, stop),), k, n)


GRADIENTS = [
    ("one use", [v(0, 4)], [[v(0, 4)]]),
    ("replicated: summed", [v(0, 4), v(0, 4)], [[v(0, 4, 0, 2)], [v(0, 4, 1, 2)]]),
    ("cut: cut", [v(0, 2), v(2, 4)], [[v(0, 2)], [v(2, 4)]]),
    ("parts of a sum: whole", [v(0, 4, 0, 2), v(0, 4, 1, 2)], [[v(0, 4)], [v(0, 4)]]),
    ("each part twice", [v(0, 1, k, 2) for k in (0, 1, 0, 1)],
     [[v(0, 1, 0, 2)], [v(0, 1, 0, 2)], [v(0, 1, 1, 2)], [v(0, 1, 1, 2)]]),
    ("a halo", [v(0, 3), v(2, 5)], [[v(0, 2), v(2, 3, 0, 2)], [v(2, 3, 1, 2), v(3, 5)]]),
    ("whole and as a sum", [v(0, 1), v(0, 1, 0, 2), v(0, 1, 1, 2)],
     [[v(0, 1, 0, 2)], [v(0, 1, 1, 2)], [v(0, 1, 1, 2)]]),
    ("an empty shard", [v(0, 4), v(4, 4)], [[v(0, 4)], []]),
    ("scalars", [View(()), View(())], [[View((), 0, 2)], [View((), 1, 2)]]),
]  # fmt: skip


@pytest.mark.parametrize(("uses", "wanted"), [row[1:] for row in GRADIENTS], ids=[row[0] for row in GRADIENTS])
def test_gradients_mirror_values(uses: list[View], wanted: list[list[View]]) -> None:
    assert gradient_views(uses) == [tuple(found) for found in wanted]


def test_a_part_read_more_often_than_another() -> None:
    with pytest.raises(PlanError, match=r"the 2 parts of the sum \[0, 4\) are read 2 and 1 times"):
        gradient_views([v(0, 4, 0, 2), v(0, 4, 0, 2), v(0, 4, 1, 2)])
