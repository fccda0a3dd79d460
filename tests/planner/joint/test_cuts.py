"""Cuts of chains whose best can be told by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from partita.planner.joint import search
from partita.planner.joint.formula import step_seconds
from partita.planner.joint.table import Prices
from partita.planner.joint.uniform import cut
from tests.planner.joint.tables import chain_table


def sizes(found: search.Found) -> list[int]:
    return [stage.stop - stage.start for stage in found.stages]


def test_bottleneck_is_the_largest_stage_and_not_the_spread():
    found = search.best(chain_table([1, 4, 2, 2, 2], stages=4, micro_batches=2))
    assert found.terms.slowest == 4
    assert found.seconds == 11 + 4


@pytest.mark.parametrize(
    ("weights", "stages", "even"),
    [([1] * 5, 4, [1, 1, 1, 2]), ([1] * 38, 8, [4, 4, 5, 5, 5, 5, 5, 5]), ([1] * 30, 4, [7, 7, 8, 8])],
)
def test_c02_no_stage_is_empty(weights, stages, even):
    assert sorted(sizes(search.best(chain_table(weights, stages=stages, micro_batches=100)))) == even


def test_c02_more_stages_than_blocks_has_no_answer():
    assert search.best(chain_table([1, 1, 1], stages=4)) is None


def test_c03_the_head_makes_the_last_stage_smaller():
    found = search.best(chain_table([1] + [10] * 24 + [15], stages=4, micro_batches=8))
    assert found.seconds == 746
    assert found.terms.slowest == 70
    first, second, third, last = sizes(found)
    assert (first - 1, second, third, last - 1) in {(5, 7, 7, 5), (6, 6, 7, 5), (6, 7, 6, 5), (6, 7, 7, 4)}


def test_only_what_is_better_than_the_given_time_is_returned():
    table = chain_table([1, 4, 2, 2, 2], stages=4, micro_batches=2)
    assert search.best(table, below=15) is None
    assert search.best(table, below=15.1).seconds == 15


def test_round_trips_limit_1f1b_with_slow_transfers():
    # Two equal stages, transfers of 3 both ways: a micro-batch is back at stage 0 after 3 + 3 + 6, two are in flight.
    table = chain_table([1, 1], [2, 2], micro_batches=10, moved=([3], [3]))
    assert step_seconds(table, cut((0, 1, 2))) == 12 + 9 * 6


def test_a_block_that_takes_no_time_beside_prices_that_no_shape_has():
    one = chain_table([0, 4, 2], stages=2, micro_batches=2)
    twice = {field.name: np.concatenate([getattr(one.prices, field.name)] * 2) for field in fields(one.prices)}
    with np.errstate(invalid="raise"):
        found = search.best(replace(one, prices=Prices(**twice)))
    assert (found.seconds, sizes(found)) == (6 + 4, [2, 1])
