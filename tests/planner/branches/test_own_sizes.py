"""Plans whose stages have numbers of micro-batches of their own, beside all numbers that there are."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

from partita.cluster import parse_cluster
from partita.plan import Plan
from partita.planner.branches.played import played_seconds
from partita.problem import Problem
from partita.ranking import planned
from partita.schedules import find
from partita.simulate.predict import predicted
from partita.simulated import fits
from tests.planner.branches.unequal import unequal

COUNTS = (1, 2, 4, 8)
GIB = 2**30


def problem(kernels: int, gib: float = 16.0, **fix: int | str) -> Problem:
    held = {"pp": 3, "dp": 1, "tp": 1, **fix}
    return Problem(
        unequal(kernels), parse_cluster("1x3xv100-16gb"), 32, "fp16", target="partita", memory_bytes=int(gib * GIB),
        fix=held,
    )  # fmt: skip


def counts_of(plan: Plan) -> tuple[int, ...]:
    return tuple(stage.micro_batches for stage in plan.stages)


def in_counts(plan: Plan, counts: tuple[int, ...]) -> Plan:
    stages = tuple(
        replace(stage, micro_batches=count, samples=plan.global_batch // count)
        for stage, count in zip(plan.stages, counts, strict=True)
    )
    return replace(plan, stages=stages, order=replace(plan.order, micro_batches=max(counts)))


def least(asked: Problem, plan: Plan) -> float:
    """The least simulated seconds of the plan's stages with any numbers of micro-batches that fit."""
    tried = (predicted(asked.graph, in_counts(plan, counts), asked.cluster) for counts in product(COUNTS, repeat=3))
    return min(one.predicted.step_seconds for one in tried if fits(asked, one))


CHAIN, JOIN = [(0, 1)], [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("counts", "turns", "edges", "each", "seconds"),
    [
        # Both forwards, the reader's turns, both backwards: 2 + 2 + 4.
        ((2, 1), [(1, 2, 0), (1, 1, 0)], CHAIN, 0.0, 8.0),
        # Messages of half a second: 2 + 0.5 + 2 + 0.5 + 4; the second gradient comes during the first backward.
        ((2, 1), [(1, 2, 0), (1, 1, 0)], CHAIN, 0.5, 9.0),
        # The reader begins with the first half; the maker's backward waits for both of its: 2 + 2 · 3 + 4.
        ((1, 2), [(2, 4, 0), (1, 2, 0)], CHAIN, 0.0, 12.0),
        # What comes from both makers takes the reader's port one after the other, and so do the gradients.
        ((1, 1, 1), [(1, 1, 0), (1, 1, 0), (1, 1, 0)], JOIN, 0.5, 6.0),
        # The end of the step is the first stage's: the other has less to wait for.
        ((1, 1), [(1, 1, 2), (1, 1, 3)], CHAIN, 0.0, 6.0),
        ((1, 1), [(1, 1, 2), (1, 1, 5)], CHAIN, 0.0, 8.0),
    ],
)
def test_turns_and_messages_one_by_one(counts, turns, edges, each, seconds):
    orders = find("kfkb").on(counts, edges, {"k": 1, "depth": 0})
    assert played_seconds(orders, counts, turns, dict.fromkeys(edges, (each, each))) == seconds


@pytest.mark.slow
def test_a_stage_of_many_small_kernels_takes_its_samples_at_once():
    asked = problem(60)
    plan = planned(asked)
    assert counts_of(plan) == (1, 4, 4)
    assert plan.predicted.step_seconds == pytest.approx(least(asked, plan), rel=1e-3)
    alike = min(
        predicted(asked.graph, in_counts(plan, (count,) * 3), asked.cluster).predicted.step_seconds for count in COUNTS
    )
    assert plan.predicted.step_seconds < 0.95 * alike
    assert "stage 0 in 1 and stages 1 and 2 in 4: with 2 in each stage the step takes" in plan.reasons[-1]
    assert plan.reasons[0].endswith("a step of 32 samples in 1 and 4 micro-batches.")
    assert not plan.search.optimal
    assert 0 < plan.search.bound_seconds <= plan.predicted.step_seconds


def test_the_fastest_may_lead_to_nothing_and_a_slower_one_to_what_is_faster():
    """With all samples at once the stages' work may be divided as is best for that, and a climb finds nothing."""
    asked = problem(150)
    plan = planned(asked)
    assert counts_of(plan) == (1, 4, 2)
    at_once = planned(problem(150, micro_batches=1)).predicted.step_seconds
    assert (at_once, plan.predicted.step_seconds) == pytest.approx((32.4e-3, 28.4e-3), rel=2e-3)
    said = r"The fastest with one number of micro-batches in all stages \(.*micro-batch of 32.*\) takes 32\.4 ms\."
    assert re.fullmatch(said, plan.reasons[-1])


@pytest.mark.slow
def test_where_stages_have_the_same_work_nothing_wins():
    asked = problem(40)
    plan = planned(asked)
    assert counts_of(plan) == (4, 4, 4)
    assert plan.predicted.step_seconds == pytest.approx(least(asked, plan), rel=1e-3)


@pytest.mark.slow
def test_no_stage_holds_more_than_there_is():
    """With all the memory the last stage holds 2.115 GiB."""
    asked = problem(60, 2.11, recompute="none")
    plan = planned(asked)
    assert fits(asked, plan)
    assert max(plan.predicted.peak_bytes.values()) <= 2.11 * GIB
    assert plan.predicted.step_seconds == pytest.approx(least(asked, plan), rel=1e-3)


@pytest.mark.parametrize("name", ["micro_batches", "micro_batch"])
def test_a_number_or_size_that_is_held_is_every_stage_s(name):
    assert set(counts_of(planned(problem(60, **{name: 2})))) == {2 if name == "micro_batches" else 16}


def test_other_targets_have_equal_stages():
    plan = planned(replace(problem(60), target="deepspeed"))
    assert len(set(counts_of(plan))) == 1
