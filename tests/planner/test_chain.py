"""The exact search over cuts, against brute force over all of them."""

from __future__ import annotations

from itertools import combinations
from math import inf

import numpy as np
import pytest

from partita.planner.chain import best_cuts, least_memory
from partita.planner.formula import ChainTable, step_seconds


def table(forward, backward=None, *, stages, micro_batches=1, schedule="1f1b", **given) -> ChainTable:
    n = len(forward)
    zero = np.zeros((n + 1, n + 1))
    rest = {
        "transfer_forward": np.zeros((stages - 1, n + 1)),
        "transfer_backward": np.zeros((stages - 1, n + 1)),
        "sync": zero, "fixed_bytes": zero, "held_bytes": zero, "memory_limit": inf,
    }  # fmt: skip
    backward = np.zeros(n) if backward is None else np.asarray(backward, float)
    return ChainTable(np.asarray(forward, float), backward, **(rest | given), micro_batches=micro_batches,
                      stages=stages, schedule=schedule)  # fmt: skip


def all_bounds(n: int, stages: int):
    return ((0, *cuts, n) for cuts in combinations(range(1, n), stages - 1))


def random_table(rng: np.random.Generator, schedule: str) -> ChainTable:
    n = int(rng.integers(1, 9))
    stages = int(rng.integers(1, n + 1))
    scale = int(rng.choice([0, 2, 10, 40]))
    i, j = np.meshgrid(range(n + 1), range(n + 1), indexing="ij")

    def monotone(high: int) -> np.ndarray:
        sums = np.concatenate(([0], np.cumsum(rng.integers(0, high + 1, n))))
        return np.where(j > i, sums[j] - sums[i], 0).astype(float)

    held, fixed = monotone(4), monotone(20)
    return table(
        rng.integers(1, 20, n), rng.integers(1, 40, n), stages=stages, micro_batches=int(rng.integers(1, 12)),
        schedule=schedule, sync=monotone(int(rng.choice([0, 30]))) + rng.integers(0, 5, (n + 1, n + 1)),
        transfer_forward=rng.integers(0, scale + 1, (stages - 1, n + 1)).astype(float),
        transfer_backward=rng.integers(0, scale + 1, (stages - 1, n + 1)).astype(float),
        held_bytes=held, fixed_bytes=fixed, memory_limit=float(rng.choice([1e9, fixed.max() * 0.7 + held.max()])),
    )  # fmt: skip


def naive_seconds(t: ChainTable, bounds) -> float:
    """The formula as it is written in words, shared with nothing."""
    spans = list(zip(bounds[:-1], bounds[1:], strict=True))
    f, b = ([sum(x[i:j]) for i, j in spans] for x in (t.forward, t.backward))
    of, ob = ([x[s][j] for s, (_, j) in enumerate(spans[:-1])] for x in (t.transfer_forward, t.transfer_backward))
    total, c, stages = sum(f) + sum(b) + sum(of) + sum(ob), t.micro_batches, len(spans)
    end = max(t.sync[i, j] for i, j in spans)
    if t.schedule == "gpipe":
        return total + (c - 1) * (max([*f, *of]) + max([*b, *ob])) + end
    slowest = max([x + y for x, y in zip([*f, *of], [*b, *ob], strict=True)])
    for s in range(stages):
        if c > stages - s:
            slowest = max(slowest, (sum(f[s:]) + sum(b[s:]) + sum(of[s:]) + sum(ob[s:])) / (stages - s))
    return total + (c - 1) * slowest + end


def heaviest(numbers: ChainTable, bounds) -> float:
    return max(numbers.memory(s)[i, j] for s, (i, j) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)))


def test_500_random_problems_against_brute_force():
    rng = np.random.default_rng(4)
    fitting = 0
    for number in range(500):
        numbers = random_table(rng, "gpipe" if number % 2 else "1f1b")
        every = list(all_bounds(numbers.blocks, numbers.stages))
        fit = [bounds for bounds in every if heaviest(numbers, bounds) <= numbers.memory_limit]
        found = best_cuts(numbers)
        assert least_memory(numbers)[0] == min(heaviest(numbers, bounds) for bounds in every)
        assert (found is None) == (not fit)
        if found:
            fitting += 1
            assert heaviest(numbers, found.bounds) <= numbers.memory_limit
            assert found.seconds == step_seconds(numbers, found.bounds)
            assert found.seconds == pytest.approx(min(naive_seconds(numbers, bounds) for bounds in fit), rel=1e-13)
    assert 300 < fitting < 500  # both answers occur


def test_bottleneck_is_the_largest_stage_and_not_the_spread():
    found = best_cuts(table([1, 4, 2, 2, 2], stages=4, micro_batches=2))
    assert found.terms.slowest == 4
    assert found.seconds == 11 + 4


@pytest.mark.parametrize(
    ("weights", "stages", "sizes"),
    [([1] * 5, 4, [1, 1, 1, 2]), ([1] * 38, 8, [4, 4, 5, 5, 5, 5, 5, 5]), ([1] * 30, 4, [7, 7, 8, 8])],
)
def test_c02_no_stage_is_empty(weights, stages, sizes):
    bounds = best_cuts(table(weights, stages=stages, micro_batches=100)).bounds
    assert sorted(np.diff(bounds).tolist()) == sizes


def test_c02_more_stages_than_blocks_has_no_answer():
    assert best_cuts(table([1, 1, 1], stages=4)) is None


def test_c03_the_head_makes_the_last_stage_smaller():
    found = best_cuts(table([1] + [10] * 24 + [15], stages=4, micro_batches=8))
    assert found.seconds == 746
    assert found.terms.slowest == 70
    sizes = np.diff(found.bounds).tolist()
    layers = (sizes[0] - 1, sizes[1], sizes[2], sizes[3] - 1)
    assert layers in {(5, 7, 7, 5), (6, 6, 7, 5), (6, 7, 6, 5), (6, 7, 7, 4)}


def test_only_what_is_better_than_the_given_time_is_returned():
    numbers = table([1, 4, 2, 2, 2], stages=4, micro_batches=2)
    assert best_cuts(numbers, below=15) is None
    assert best_cuts(numbers, below=15.1).seconds == 15


def test_round_trips_limit_1f1b_with_slow_transfers():
    # Two equal stages, transfers of 3 both ways: a micro-batch is back at stage 0 after 3 + 3 + 6, two are in flight.
    numbers = table([1, 1], [2, 2], stages=2, micro_batches=10,
                    transfer_forward=np.full((1, 3), 3.0), transfer_backward=np.full((1, 3), 3.0))  # fmt: skip
    assert step_seconds(numbers, (0, 1, 2)) == 12 + 9 * 6
