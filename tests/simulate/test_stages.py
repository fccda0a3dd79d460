"""Plans that no planner lists, priced stage by stage: as the planner prices those it does, and else counted by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Axis, Cut, Plan
from partita.planner import parse_fix, plan
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config
from partita.simulate.costs import _by_stage, costs
from partita.simulate.stages import Stages

CLUSTER = parse_cluster("4x2xa100-80gb")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_config(config("gpt3-tiny"), samples=1, seq=64, dtype="bfloat16", name="gpt3-tiny")


def made(graph: Graph, cluster=CLUSTER, batch=32, **fix: object) -> Plan:
    return plan(Problem(graph, cluster, batch, fix=parse_fix(f"{name}={value}" for name, value in fix.items())))


@pytest.mark.parametrize("machine", ["4x2xa100-80gb", "cpu"])
@pytest.mark.parametrize(
    ("zero", "recompute", "tp", "pp"),
    [*product(range(4), ["none", "full"], [1, 2], [1]), *product(range(2), ["none", "full"], [1, 2, 4], [2])],
)
def test_a_uniform_plan_takes_what_the_planner_says(graph, machine, zero, recompute, tp, pp):
    cluster = CLUSTER if machine != "cpu" else parse_cluster("8xcpu")
    dp = 8 // tp // pp
    found = made(
        graph, cluster, dp=dp, tp=tp, pp=pp, recompute=recompute, micro_batches=2, **({"zero": zero} if dp > 1 else {})
    )
    planned = costs(graph, found, cluster)
    assert planned.table is not None
    staged = _by_stage(Stages(graph, found, cluster, alike(graph)), planned.bounds)
    for name in ("seconds", "collective_seconds", "collective_bytes"):
        ours, theirs = getattr(staged, name), getattr(planned, name)
        assert {key: ours[key] for key in theirs} == pytest.approx(theirs, rel=1e-12, abs=1e-15), name
    for ours, theirs in zip(staged.memory, planned.memory, strict=True):
        assert ours.items() == pytest.approx(theirs.items(), abs=len(graph.blocks))


def shard(found: Plan, k: int) -> Plan:
    """Heads and hidden of the layers in k shards, one after another."""
    stages = []
    for stage in found.stages:
        strategies = [
            replace(s, cuts=(s.cuts[0], Cut("heads", ("shard",)), Cut("hidden", ("shard",)))) if ".h." in block else s
            for block, s in zip(stage.blocks, stage.strategies, strict=True)
        ]
        stages.append(replace(stage, other_axes=(Axis("shard", k, "turns"),), strategies=tuple(strategies)))
    return replace(found, stages=tuple(stages))


def test_co_shard_keeps_less_and_computes_the_inside_again(graph):
    cluster = parse_cluster("1xa100-80gb")
    found = made(graph, cluster, batch=8, micro_batches=1)
    plain = Stages(graph, found, cluster, alike(graph))
    parts = {}
    for k in (2, 4):
        priced = Stages(graph, shard(found, k), cluster, alike(graph))
        (stage,) = priced.plan.stages
        block = stage.blocks[1]
        cost, whole = (
            priced.cost(stage, block, stage.strategies[1]),
            plain.cost(plain.plan.stages[0], block, plain.plan.stages[0].strategies[1]),
        )
        assert cost.flops.sum() == whole.flops.sum()
        # All matrix products of the layer lie inside its two classes.
        assert cost.flops[cost.repeated].sum() == whole.flops.sum()
        assert (cost.trained, cost.reductions, cost.entries) == (whole.trained, (), ())
        # Kept: the inputs of two norms and of two classes, in bf16, and the norms' statistics.
        tokens, h = 64, 128
        assert cost.saved_bytes == 4 * tokens * h * 2 + 2 * 8 * tokens
        inside = whole.saved_bytes - cost.saved_bytes
        parts[k] = (cost.temporary_bytes, inside)
        assert priced.memory(0).activations < 0.45 * plain.memory(0).activations
    # The larger of the two classes, one shard of it at a time.
    assert parts[4][0] < parts[2][0]
    with pytest.raises(PlanError, match="tp=3 does not divide heads=4"):
        Stages(graph, shard(found, 3), cluster, alike(graph)).memory(0)
