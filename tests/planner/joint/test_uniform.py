"""Ways that are the same in every stage: their cuts against all cuts, and against what the whole space has."""

from __future__ import annotations

from itertools import combinations

import pytest

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.planner.joint.formula import fits, stage_numbers, step_seconds
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way, cut
from partita.problem import Problem

WAYS = [
    Uniform(1, 1, 4, 3, "none", 2, 4),
    Uniform(2, 2, 2, 1, "full", 1, 8),
    Uniform(3, 2, 1, 0, "none", 4, 2),
    Uniform(4, 1, 2, 2, "none", 1, 3),
]


def pricing(batch: int = 1) -> Pricing:
    graph = load_model("gpt3-tiny", None, "bfloat16")
    return Pricing(Problem(graph, parse_cluster("2x4xa100-80gb"), batch, target="partita"), alike(graph))


def all_cuts(way: Way):
    blocks = way.table.blocks
    return [cut((0, *inner, blocks)) for inner in combinations(range(1, blocks), way.uniform.pp - 1)]


def largest(way: Way, stages) -> float:
    return max(stage_numbers(way.table, stage, len(stages) - 1 - at).bytes for at, stage in enumerate(stages))


@pytest.mark.parametrize("uniform", WAYS)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_fastest_and_the_smallest_cuts_are_the_best_of_all(uniform, schedule):
    way = Way(pricing(), uniform, schedule)
    found = all_cuts(way)
    assert step_seconds(way.table, way.fastest()) == pytest.approx(min(step_seconds(way.table, s) for s in found))
    assert all(fits(way.table, stages) for stages in found)
    assert largest(way, way.smallest()) == min(largest(way, stages) for stages in found)


@pytest.mark.parametrize("uniform", WAYS)
def test_a_limit_that_the_smallest_keeps_is_the_least_that_any_cuts_keep(uniform):
    known = pricing(uniform.batch)
    least = int(largest(way := Way(known, uniform), way.smallest()))
    for limit, some in ((least, True), (least - 1, False)):
        problem = Problem(known.problem.graph, known.cluster, uniform.batch, target="partita", memory_bytes=limit)
        assert (Way(known.on(problem), uniform).fastest() is not None) is some


@pytest.mark.parametrize("uniform", WAYS)
def test_a_way_costs_what_it_costs_in_the_whole_space(uniform):
    whole = pricing(uniform.batch)
    whole = Pricing(whole.problem, whole.groups, uniform.devices)
    way = Way(whole, uniform)
    for family in whole.families:
        if family.stages != uniform.pp or family.tied != (uniform.tp, "tensor"):
            continue
        table = whole.table(family, uniform.micro_batches)
        shape = family.shapes.index(way.family.shapes[0])
        option = family.options.index(way.family.options[0])
        for stages in all_cuts(way):
            same = [type(s)(s.start, s.stop, s.unit, shape, (option,) * (s.stop - s.start)) for s in stages]
            assert step_seconds(table, same) == step_seconds(way.table, stages)
        return
    raise AssertionError(uniform)


def test_a_plan_of_a_way_is_as_it_was_given():
    uniform = Uniform(2, 2, 2, 1, "full", 1, 8)
    way = Way(pricing(), uniform)
    plan = way.plan(cut((0, 3, 6)))
    assert [(stage.dp, stage.tp, stage.samples, stage.micro_batches) for stage in plan.stages] == [(2, 2, 2, 8)] * 2
    assert {(s.zero, s.recompute) for stage in plan.stages for s in stage.strategies} == {(1, "full")}
    assert plan.global_batch == uniform.batch == 16
    assert plan.predicted.step_seconds == pytest.approx(step_seconds(way.table, cut((0, 3, 6))), rel=1e-8)


def test_ways_of_one_pricing_are_kept_apart():
    known = pricing(8)
    for uniform in (Uniform(1, 2, 1, 0, again, 8, 1) for again in ("none", "full")):
        held = Way(known, uniform).plan(cut((0, 6))).predicted.breakdown.stages[0].memory.activations
        assert held == Way(pricing(), uniform).plan(cut((0, 6))).predicted.breakdown.stages[0].memory.activations
