"""The least memory at which a table has an answer, against every answer there is and against the search."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, isinf
from random import Random

import pytest

from partita.planner.joint.formula import fits
from partita.planner.joint.search import best
from partita.planner.joint.smallest import floor, smallest
from tests.planner.joint.brute import least_limit, small_table


@pytest.mark.parametrize("seed", range(30))
def test_the_least_limit_is_that_of_all_answers(seed):
    table = small_table(Random(seed), most=1500)
    expected, found = least_limit(table), smallest(table)
    if isinf(expected):
        assert found is None
        return
    assert floor(table) <= expected
    assert found.bytes == ceil(expected)
    at, less = replace(table, memory_limit=float(found.bytes)), replace(table, memory_limit=float(found.bytes - 1))
    assert fits(at, found.stages)
    assert best(at) is not None
    assert best(less) is None
    assert smallest(table, under=expected) is None
    assert smallest(table, under=expected + 0.5).stages == found.stages
    assert smallest(table, under=inf) == found
