"""Answers near the search's: they fit, they take no longer, and often nothing of the table takes less."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest

from partita.planner.joint import search
from partita.planner.joint.climb import sharpest
from partita.planner.joint.formula import fits
from partita.planner.joint.sharp import sharp_seconds
from tests.planner.joint.brute import answers, small_table

# Thorough: the fast suite has the search against brute force and whole plans.
pytestmark = pytest.mark.slow

DEPTHS = (0, 1, 2)


def beside_brute_force(seed: int, count: int) -> np.ndarray:
    """By what share the best climbed answer takes longer than the best at any depth, under the sharper formula."""
    random, found = Random(seed), []
    while len(found) < count:
        table = replace(small_table(random, 500), schedule="1f1b", depth=0)
        first = search.best(table)
        if first is None:
            continue
        deep = [replace(table, depth=depth) for depth in DEPTHS]
        ends = sharpest(table, first.stages, DEPTHS)
        for end in ends:
            assert end.table.depth in DEPTHS
            assert fits(end.table, end.stages)
            assert end.seconds == sharp_seconds(end.table, end.stages)
            assert [stage.start for stage in end.stages] == [0, *(stage.stop for stage in end.stages[:-1])]
            assert end.stages[-1].stop == table.blocks
            units = np.cumsum([0, *(table.units[stage.shape] for stage in end.stages)]).tolist()
            assert [stage.unit for stage in end.stages] == units[:-1]
            assert units[-1] == table.all_units
            assert len(end.stages) <= table.most_stages
        assert [end.seconds for end in ends] == sorted(end.seconds for end in ends)
        starts = [sharp_seconds(each, first.stages) for each in deep if fits(each, first.stages)]
        assert ends[0].seconds <= min(starts) * (1 + 1e-9)
        least = min(
            (sharp_seconds(each, answer) for answer in answers(table) for each in deep if fits(each, answer)),
            default=inf,
        )
        found.append(ends[0].seconds / least - 1 if least else 0.0)
    return np.array(found)


def test_40_random_tables():
    found = beside_brute_force(1, 40)
    assert found.min() > -1e-9
    assert np.mean(found < 1e-9) > 0.75
    assert np.mean(found) < 0.02


@pytest.mark.slow
def test_300_random_tables():
    found = beside_brute_force(2, 300)
    assert np.mean(found < 1e-9) > 0.75
    assert np.mean(found) < 0.02


def test_only_answers_that_take_less_are_given():
    random, seen = Random(3), 0
    while seen < 20:
        table = replace(small_table(random, 300), schedule="1f1b", depth=0)
        first = search.best(table)
        if first is None:
            continue
        seen += 1
        ends = sharpest(table, first.stages, DEPTHS)
        assert sharpest(table, first.stages, DEPTHS, ends[0].seconds) == []
        again = sharpest(table, first.stages, DEPTHS, ends[0].seconds * (1 + 1e-6) + 1e-9)
        assert again[0].seconds == pytest.approx(ends[0].seconds, rel=1e-9)
