"""Random redistributions carried out on virtual devices: equal to NumPy, within the memory, not below the bound, and
priced at what the devices literally send and receive."""

from __future__ import annotations

from math import ceil
from random import Random

import numpy as np
import pytest

from partita.cluster import parse_cluster
from partita.redistribution.answer import Redistribution, elements_in_sizes
from partita.redistribution.search import redistribution
from partita.redistribution.steps import Op
from partita.redistribution.virtual import collect, run
from tests.redistribution.literal import traffic, unevenness
from tests.redistribution.problems import Problem, any_problem, spread, whole

ITEM = 4


def check_steps(answer: Redistribution) -> None:
    """They lead from the source to the target, no array is larger than was said, and sums over devices are right."""
    devices = sorted({*answer.source.mesh.devices, *answer.target.mesh.devices})
    total = np.zeros((2, len(devices)), np.int64)
    here, literal = answer.source, True
    for priced in answer.steps:
        np.testing.assert_array_equal(here.boxes, priced.step.before.boxes)
        np.testing.assert_array_equal(here.parts, priced.step.before.parts)
        here = priced.step.after
        assert priced.local_bytes == here.elements.max() * ITEM <= answer.peak_bytes
        # An all-reduce is sent in pieces, which its exchange, one sum for each element, doesn't show.
        if priced.step.op == "all-reduce":
            literal = False
            continue
        sent, received = traffic(priced.step)
        rest = unevenness(priced.step)
        literal = literal and not rest
        assert priced.received_bytes == max(received.values()) * ITEM, (priced, received)
        assert abs(max(sent.values()) * ITEM - priced.sent_bytes) <= rest * ITEM, (priced, sent)
        total += [[side.get(device, 0) for device in devices] for side in (sent, received)]
    np.testing.assert_array_equal(here.boxes, answer.target.boxes)
    np.testing.assert_array_equal(here.parts, answer.target.parts)
    if literal:
        assert answer.bytes_per_device == total.max() * ITEM


def check(problem: Problem, random: Random) -> None:
    nodes = random.choice([None, None, "2x8", "4x4", "8x2"])
    cluster = None if nodes is None else parse_cluster(f"{nodes}xh100-80gb")
    answer = redistribution(problem.source, problem.target, ITEM, cluster, objective=random.choice(["bytes", "time"]))
    assert answer.peak_bytes <= problem.elements * ITEM == answer.memory_bound_bytes
    check_answer(problem, answer, random)


def check_answer(problem: Problem, answer: Redistribution, random: Random) -> None:
    array = whole(problem)
    after = run([priced.step for priced in answer.steps], spread(random, array, problem.source))
    np.testing.assert_array_equal(collect(after, problem.target), array)
    assert {device: made.shape for device, made in after.items()} == {
        device: problem.target.local_shape(place) for place, device in enumerate(problem.target.mesh.devices)
    }
    assert answer.bytes_per_device >= answer.lower_bound_bytes
    check_steps(answer)


def check_many(seed: int, count: int) -> None:
    random = Random(seed)
    for number in range(count):
        problem = any_problem(random)
        try:
            check(problem, random)
        except Exception as error:
            error.add_note(f"problem {number} of seed {seed}: {problem}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_five_hundred_are_equal(seed: int) -> None:
    check_many(seed, 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 119))
def test_ten_thousand_are_equal(seed: int) -> None:
    check_many(seed, 500)


def test_collectives_alone_always_lead_there() -> None:
    random = Random(8)
    collectives: frozenset[Op] = frozenset(("slice", "all-gather", "all-to-all", "reduce-scatter", "all-reduce"))
    for _ in range(150):
        problem = any_problem(random, one_mesh=True)
        if set(problem.target.layout.partial) <= set(problem.source.layout.partial):
            answer = redistribution(problem.source, problem.target, ITEM, allowed=collectives)
            assert {priced.step.op for priced in answer.steps} <= collectives
            assert answer.peak_bytes <= answer.memory_bound_bytes
            check_answer(problem, answer, random)


def test_the_memory_in_sizes_is_the_memory() -> None:
    random = Random(4)
    for _ in range(300):
        kind = any_problem(random).source
        sizes = {f"n{dim}": size for dim, size in enumerate(kind.shape)}
        formula = elements_in_sizes(kind).replace("⌈", "ceil(").replace("⌉", ")").replace("·", "*")
        assert eval(formula, {"ceil": ceil, **sizes}) == kind.elements.max()


def test_problems_are_of_every_kind() -> None:
    random = Random(3)
    problems = [any_problem(random) for _ in range(2000)]
    kinds = {
        "even": [p for p in problems if p.source.even and p.target.even],
        "uneven": [p for p in problems if not p.source.even],
        "empty shards": [p for p in problems if 0 in p.source.elements and np.prod(p.source.shape)],
        "zero size": [p for p in problems if 0 in p.source.shape],
        "scalar": [p for p in problems if p.source.shape == ()],
        "four dims": [p for p in problems if len(p.source.shape) == 4],
        "four axes": [p for p in problems if len(p.source.mesh.axes) == 4],
        "axis of size 1": [p for p in problems if 1 in p.source.mesh.sizes.values()],
        "order": [p for p in problems if any(list(dim) != sorted(dim) for dim in p.source.layout.dims)],
        "sum to none": [p for p in problems if p.source.layout.partial and not p.target.layout.partial],
        "sum to sum": [p for p in problems if p.source.layout.partial and p.target.layout.partial],
        "none to sum": [p for p in problems if not p.source.layout.partial and p.target.layout.partial],
        "another mesh": [p for p in problems if p.source.mesh != p.target.mesh],
        "disjoint": [p for p in problems if not set(p.source.mesh.devices) & set(p.target.mesh.devices)],
        "subset": [p for p in problems if set(p.source.mesh.devices) > set(p.target.mesh.devices)],
        "superset": [p for p in problems if set(p.source.mesh.devices) < set(p.target.mesh.devices)],
        "same devices": [p for p in problems if p.source.mesh != p.target.mesh
                         and set(p.source.mesh.devices) == set(p.target.mesh.devices)],
    }  # fmt: skip
    assert {name: len(found) for name, found in kinds.items() if len(found) < 25} == {}
