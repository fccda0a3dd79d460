"""A stage's blocks in the fastest options that fit together, beside all choices of options."""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.planner.branches.fitting import KEPT, fitted, fitting, weighed
from partita.planner.ideals import packed

NUMBERS = st.integers(0, 6)
NONE = np.zeros(0)
OPTIONS = st.lists(st.tuples(st.integers(1, 6), NUMBERS, NUMBERS, NUMBERS), min_size=2, max_size=2)


# Compiled at its first call.
@settings(deadline=None, max_examples=200)
@given(st.lists(OPTIONS, min_size=1, max_size=6), st.integers(1, 3), st.integers(0, 60))
def test_no_choice_of_options_that_fits_is_faster(options, in_flight, free):
    seconds, fixed, held, temporary = np.moveaxis(np.array(options, float), 2, 0)
    best = inf
    for choice in product(range(2), repeat=len(options)):
        each = [options[block][option] for block, option in enumerate(choice)]
        size = sum(f + in_flight * h for _, f, h, _ in each) + max(t for *_, t in each)
        if size <= free:
            best = min(best, sum(s for s, *_ in each))
    found, work = fitting(np.arange(len(options)), seconds, fixed, held, temporary, in_flight, float(free), NONE)
    assert (found, work > 0) == (best, True)


def test_a_block_without_an_option_fits_nowhere():
    seconds = np.array([[1.0, 2.0], [inf, inf]])
    nothing = np.zeros((2, 2))
    assert fitting(np.array([0, 1]), seconds, nothing, nothing, nothing, 1, 1.0, NONE)[0] == inf
    assert fitting(np.array([0]), seconds, nothing, nothing, nothing, 1, 1.0, NONE)[0] == 1.0


def two_options(blocks: int):
    """Of each block a fast option and one that takes less: seconds, bytes, temporary bytes; and all slopes between."""
    random = np.random.default_rng(5)
    seconds = np.stack([np.ones(blocks), 1 + random.random(blocks)], axis=1)
    size = np.stack([1 + random.random(blocks), random.random(blocks)], axis=1)
    slopes = np.unique((seconds[:, 1] - seconds[:, 0]) / (size[:, 0] - size[:, 1]))
    return np.arange(blocks), seconds, size, random.random((blocks, 2)), slopes


def test_the_bound_for_many_choices_is_close_to_the_fastest_that_fits():
    each, seconds, size, temporary, slopes = two_options(12)
    choices = np.array(list(product(range(2), repeat=12)))
    fits = size[each, choices].sum(axis=1) + temporary[each, choices].max(axis=1) <= 13
    fastest = seconds[each, choices].sum(axis=1)[fits].min()
    found = weighed(each, seconds, size, np.zeros((12, 2)), temporary, 1, 13.0, slopes)
    assert seconds.min(axis=1).sum() < 0.98 * fastest
    assert 0.98 * fastest < found < fastest


def test_of_more_choices_than_are_gone_through_it_stands():
    each, seconds, size, temporary, slopes = two_options(60)
    arguments = each, seconds, size, np.zeros((60, 2)), temporary, 1, 65.0, slopes
    assert fitting(*arguments)[0] == weighed(*arguments) > 60


@pytest.mark.parametrize("blocks", [3, 70])
def test_stages_that_were_asked_for_are_kept_apart(blocks):
    """Of all pairs of sets, ways to run and micro-batches in flight; asked twice, in words of 64 blocks."""
    random = np.random.default_rng(blocks)
    seconds, fixed, held, temporary = random.integers(1, 9, (4, 2, blocks, 2)).astype(float)
    chosen = random.random((12, blocks)) < 3 / blocks
    masks = packed(np.concatenate([np.zeros((1, blocks), bool), chosen]))
    keys, values = np.zeros((KEPT, masks.shape[1] + 1), np.uint64), np.zeros(KEPT)
    for _ in range(2):
        for at, one in enumerate(chosen, start=1):
            for v, in_flight in product(range(2), (1, 4)):
                prices = (seconds, fixed, held, temporary)
                took, _ = fitted(masks[0], masks[at], v, in_flight, *prices, NONE, 25.0, keys, values)
                own, _ = fitting(np.flatnonzero(one), *(each[v] for each in prices), in_flight, 25.0, NONE)
                assert took == own
