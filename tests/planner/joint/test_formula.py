"""The formulas against an event simulation that knows nothing of them, and the schedules' own counts."""

from __future__ import annotations

import numpy as np
import pytest

from partita.errors import PlanError
from partita.planner.joint.formula import step_seconds
from partita.planner.joint.table import JointTable
from partita.planner.joint.uniform import cut
from partita.schedules import GENERATORS, gpipe, in_flight, one_f_one_b
from tests.planner.joint.tables import chain_table


def table(f, b, of, ob, micro_batches, schedule) -> JointTable:
    """One block a stage."""
    return chain_table(f, b, micro_batches=micro_batches, schedule=schedule, moved=(of, ob))


def held(numbers: JointTable) -> list[int]:
    """Micro-batches in flight, by stage."""
    return [numbers.held(behind) for behind in reversed(range(numbers.blocks))]


def simulate(orders, f, b, of, ob) -> float:
    """Seconds until the last turn ends: every stage follows its order, every link takes one message a direction."""
    stages = len(f)
    ended, arrived, free, link = {}, {}, [0.0] * stages, {}
    position = [0] * stages
    while any(position[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for s in range(stages):
            while position[s] < len(orders[s]):
                turn = orders[s][position[s]]
                if turn.phase == "forward":
                    source, seconds, target = (None if s == 0 else s - 1), f[s], s + 1
                else:
                    source, seconds, target = (None if s == stages - 1 else s + 1), b[s], s - 1
                if source is not None and (source, s, turn.phase, turn.micro) not in arrived:
                    break
                ready = 0.0 if source is None else arrived[source, s, turn.phase, turn.micro]
                if turn.phase == "backward":
                    ready = max(ready, ended[s, "forward", turn.micro])
                end = free[s] = max(free[s], ready) + seconds
                ended[s, turn.phase, turn.micro] = end
                if 0 <= target < stages:
                    delay = (of if turn.phase == "forward" else ob)[min(s, target)]
                    link[s, target] = max(link.get((s, target), 0.0), end) + delay
                    arrived[s, target, turn.phase, turn.micro] = link[s, target]
                position[s] += 1
                moved = True
        assert moved, "the order deadlocks"
    return max(ended.values())


def test_gpipe_is_exact_in_1000_random_cases():
    rng = np.random.default_rng(1)
    for _ in range(1000):
        stages, count = int(rng.integers(1, 6)), int(rng.integers(1, 9))
        f, b = rng.integers(1, 20, stages), rng.integers(1, 40, stages)
        of, ob = rng.integers(0, 30, stages - 1), rng.integers(0, 30, stages - 1)
        assert simulate(gpipe(stages, count), f, b, of, ob) == step_seconds(
            table(f, b, of, ob, count, "gpipe"), cut(range(stages + 1))
        )


def test_1f1b_without_transfers_is_an_upper_bound_and_near():
    rng = np.random.default_rng(2)
    shares = []
    for _ in range(500):
        stages, count = int(rng.integers(1, 6)), int(rng.integers(1, 17))
        f, b = rng.integers(5, 20, stages), rng.integers(10, 40, stages)
        none = np.zeros(stages - 1)
        true = simulate(one_f_one_b(stages, count), f, b, none, none)
        shares.append(true / step_seconds(table(f, b, none, none, count, "1f1b"), cut(range(stages + 1))))
    assert max(shares) <= 1 + 1e-12
    assert min(shares) > 0.7
    assert np.mean(shares) > 0.95


@pytest.mark.parametrize("transfer", [0.1, 0.5, 1.0])
def test_1f1b_with_transfers_is_near_because_of_the_cycle_term(transfer):
    f, b, o = [1.0] * 8, [2.0] * 8, [transfer] * 7
    true = simulate(one_f_one_b(8, 32), f, b, o, o)
    assert step_seconds(table(f, b, o, o, 32, "1f1b"), cut(range(9))) == pytest.approx(true, rel=0.08)
    without = 24 + 14 * transfer + 31 * 3
    assert true > 1.03 * without  # what the sum and the slowest stage alone would say


@pytest.mark.parametrize(
    ("stages", "count", "makespan", "in_flights"),
    [(4, 2, 15, [2, 2, 2, 1]), (8, 1, 24, [1] * 8), (4, 8, 33, [4, 3, 2, 1]), (4, 1, 12, [1, 1, 1, 1])],
)
def test_c23_fewer_micro_batches_than_stages(stages, count, makespan, in_flights):
    orders = one_f_one_b(stages, count)
    none = [0] * (stages - 1)
    assert simulate(orders, [1] * stages, [2] * stages, none, none) == makespan
    numbers = table([1] * stages, [2] * stages, none, none, count, "1f1b")
    assert step_seconds(numbers, cut(range(stages + 1))) == makespan
    assert [in_flight(orders[stage]) for stage in range(stages)] == in_flights == held(numbers)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 4), (3, 2), (4, 9), (7, 3)])
def test_every_turn_occurs_once_and_the_count_in_flight_is_the_table_s(name, stages, count):
    orders = GENERATORS[name](stages, count)
    numbers = table([1] * stages, [1] * stages, [0] * (stages - 1), [0] * (stages - 1), count, name)
    for stage, turns in orders.items():
        assert len(turns) == len(set(turns)) == 2 * count
        assert {turn.stage for turn in turns} == {stage}
        assert in_flight(turns) == held(numbers)[stage]


@pytest.mark.parametrize(("stages", "count"), [(0, 1), (1, 0), (-1, 3)])
def test_counts_that_are_not_positive_are_refused(stages, count):
    with pytest.raises(PlanError, match="at least 1"):
        one_f_one_b(stages, count)
