"""The exact search against every answer there is."""

from __future__ import annotations

from math import inf, isinf
from random import Random

import pytest

from partita.planner.joint.formula import fits, step_seconds
from partita.planner.joint.search import best
from partita.planner.joint.table import JointTable
from partita.planner.joint.tidy import tidied
from tests.planner.joint.brute import brute, small_table


def checked(table: JointTable) -> float:
    """What the search finds, held against brute force and priced again."""
    found, every = best(table), brute(table)
    if found is None:
        assert isinf(every.seconds)
        return inf
    assert found.seconds == pytest.approx(every.seconds, rel=1e-9)
    assert fits(table, found.stages)
    assert found.seconds == pytest.approx(step_seconds(table, found.stages), rel=1e-12)
    assert found.stages[0].start == found.stages[0].unit == 0
    ends = [(stage.stop, stage.unit + int(table.units[stage.shape])) for stage in found.stages]
    assert ends == [*((stage.start, stage.unit) for stage in found.stages[1:]), (table.blocks, table.all_units)]
    assert len(found.stages) <= table.most_stages
    return found.seconds


def seconds_of(seed: int, count: int) -> list[float]:
    random = Random(seed)
    return [checked(small_table(random)) for _ in range(count)]


@pytest.mark.slow
def test_100_random_tables():
    answered = [seconds < inf for seconds in seconds_of(1, 100)]
    assert 50 < sum(answered) < 90  # both answers occur


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 11))
def test_900_more(seed: int):
    assert any(seconds < inf for seconds in seconds_of(seed, 100))


@pytest.mark.slow
def test_only_what_is_better_than_the_given_time_is_returned():
    random, seen = Random(11), 0
    for _ in range(60):
        table = small_table(random, most=300)
        found = best(table)
        if found is None:
            continue
        seen += 1
        assert best(table, below=found.seconds) is None
        again = best(table, below=found.seconds * (1 + 1e-6) + 1e-9)
        assert again is not None
        assert again.seconds == pytest.approx(found.seconds, rel=1e-9)
    assert seen > 20


def test_blocks_that_cost_the_same_are_in_order():
    random, changed = Random(12), 0
    for _ in range(60):
        table = small_table(random, most=2000)
        found = best(table)
        if found is None:
            continue
        tidy = tidied(table, found.stages)
        changed += tidy != found.stages
        assert fits(table, tidy)
        assert step_seconds(table, tidy) == pytest.approx(found.seconds, rel=1e-12)
