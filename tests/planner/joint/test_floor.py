"""The bounds that spare a search: never over the best answer, and not idle."""

from __future__ import annotations

from math import inf, isinf
from random import Random

import numpy as np
import pytest

from partita.planner.joint.floor import HALVINGS, Floor, evenest, floor, sorts
from partita.planner.joint.search import best
from partita.planner.joint.table import JointTable
from tests.planner.joint.brute import small_table


def floor_of(table: JointTable) -> Floor:
    """The bounds of a table, each block of a sort of its own."""
    units = np.full(table.prices.forward.shape[0], inf)
    for shape, row in enumerate(table.prices_of.tolist()):
        for v in set(row) - {-1}:
            units[v] = min(units[v], table.units[shape])
    stages = None
    if table.units.min() == table.units.max() and table.all_units % table.units[0] == 0:
        stages = table.all_units // int(table.units[0])
    usable = np.isfinite(units)
    known = sorts(np.arange(table.blocks))
    return floor(table.prices, known, units / table.all_units, usable, stages, table.micro_batches)


@pytest.mark.parametrize("seed", [20, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(21, 24))])
def test_no_answer_takes_less(seed: int):
    random, ratios = Random(seed), []
    for _ in range(60):
        table = small_table(random)
        found, bounds = best(table), floor_of(table)
        bound = bounds.bound()
        if found is None:
            continue
        assert bound <= found.seconds
        within = bounds.within(table.room)
        assert within <= found.seconds
        ratios.append(max(bound, within) / found.seconds)
    assert len(ratios) > 20
    assert sum(ratios) / len(ratios) > 0.5


def test_a_block_that_can_be_nowhere_has_no_bound():
    table = small_table(Random(1))
    table.prices.forward[:, 0] = inf
    assert isinf(floor_of(table).bound())


@pytest.mark.parametrize(
    ("weights", "stages", "largest"),
    [([1, 1, 1], 3, 1), ([1, 1, 1], 2, 2), ([5, 1, 1, 1], 2, 5), ([2, 3, 4, 5], 2, 9), ([4], 3, 4), ([1] * 98, 64, 2)],
)
def test_the_evenest_division(weights: list[float], stages: int, largest: float):
    assert evenest(np.array(weights, dtype=float), stages, HALVINGS) == pytest.approx(largest, rel=1e-7)
    assert evenest(np.array(weights, dtype=float), stages, HALVINGS) <= largest
