"""The sharper 1F1B formula against queues that are run: never above them, and near."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from partita.planner.joint.formula import StageNumbers
from partita.planner.joint.sharp import Moved, pipeline_seconds, sharp_seconds
from tests.planner.joint.simulated import run, simulated_seconds
from tests.planner.joint.tables import random_answer, random_table


def stated(turns: list[StageNumbers], moved: list[Moved], ahead: list[int], micro_batches: int) -> float:
    """The stated formula, from numbers."""
    total, slowest = 0.0, max([one.forward + one.backward for one in turns] + [sum(pair) for pair in moved])
    for behind, (stage, after) in enumerate(zip(reversed(turns), [(0.0, 0.0), *reversed(moved)], strict=True)):
        total += stage.forward + stage.backward + sum(after)
        if micro_batches > ahead[behind]:
            slowest = max(slowest, total / ahead[behind])
    return total + (micro_batches - 1) * slowest


def ratios(seed: int, count: int) -> np.ndarray:
    """[count, 2]: simulated seconds over those of the sharper and of the stated formula; no stage has an end."""
    random, found = Random(seed), []
    for _ in range(count):
        stages, micro_batches, depth = random.randint(1, 8), random.randint(1, 32), random.randint(0, 2)
        unlike, share, back = random.choice([0, 0.2, 1]), random.choice([0, 0.3, 1, 1.5]), random.uniform(0.5, 3)
        forward = [3 * (1 + unlike * random.uniform(-0.9, 2)) for _ in range(stages)]
        turns = [StageNumbers(f, f * back * random.uniform(0.9, 1.1), 0.0, 0.0) for f in forward]
        moved = [(3 * share * random.uniform(0.5, 1), 3 * share * random.uniform(0.5, 1)) for _ in range(stages - 1)]
        ahead = [behind + 1 + depth * behind for behind in range(stages)]
        took = run("1f1b", micro_batches, depth, turns, moved)
        numbers = [(one.forward, one.backward, one.sync) for one in turns]
        sharp = pipeline_seconds(numbers, moved, ahead, micro_batches)
        found.append((took / sharp, took / stated(turns, moved, ahead, micro_batches)))
    return np.array(found)


def checked(found: np.ndarray) -> None:
    sharp, plain = found[:, 0], found[:, 1]
    assert sharp.min() >= 1 - 1e-12
    assert sharp.mean() < 1.025
    # The stated formula is off both ways, and by more.
    assert plain.min() < 0.95
    assert np.abs(plain - 1).mean() > 1.5 * np.abs(sharp - 1).mean()


def test_never_above_60_random_pipelines_and_near_them():
    checked(ratios(1, 60))


@pytest.mark.slow
def test_never_above_1000_random_pipelines_and_near_them():
    checked(ratios(2, 1000))


@pytest.mark.parametrize(
    ("stages", "micro_batches"), [(1, 1), (1, 7), (2, 1), (2, 2), (4, 2), (4, 4), (4, 16), (8, 3), (8, 24)]
)
def test_alike_stages_without_transfers_take_one_turn_more_for_each_further_stage(stages: int, micro_batches: int):
    ahead = [behind + 1 for behind in range(stages)]
    found = pipeline_seconds([(2.0, 5.0, 3.0)] * stages, [(0.0, 0.0)] * (stages - 1), ahead, micro_batches)
    assert found == (stages - 1 + micro_batches) * 7 + 3


@pytest.mark.parametrize(
    ("forward", "depth", "expected"), [((2, 1), 0, 19), ((2, 1), 1, 18), ((2, 1, 1), 0, 20), ((2, 1, 1), 1, 21)]
)
def test_a_deeper_warm_up_of_unlike_stages_changes_the_time_without_transfers(forward, depth: int, expected: int):
    turns = [StageNumbers(f, 2 * f, 0, 0) for f in forward]
    moved = [(0.0, 0.0)] * (len(forward) - 1)
    assert run("1f1b", 3, depth, turns, moved) == expected


def test_an_answer_of_a_table_takes_no_less_when_it_is_run_without_ends():
    random, seen = Random(3), 0
    while seen < 60:
        table = random_table(random)
        answer = random_answer(random, table) if table.schedule == "1f1b" else None
        if answer is None:
            continue
        seen += 1
        table.prices.sync[:] = table.prices.base_sync[:] = table.prices.lent_sync[:] = 0.0
        assert sharp_seconds(table, answer) <= simulated_seconds(table, answer) * (1 + 1e-12)
