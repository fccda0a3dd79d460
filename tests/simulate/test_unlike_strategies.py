"""Stages and blocks that divide and recompute unlike parts: what each takes is what its own strategy says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster import parse_cluster
from partita.cost.block import divided_cost
from partita.cost.division import Division
from partita.cost.precision import item_bytes, peak_flops
from partita.graph import Graph
from partita.plan import Plan
from partita.planner import parse_fix, plan
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config
from partita.simulate.costs import costs

CLUSTER = parse_cluster("4x2xa100-80gb")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_config(config("gpt3-tiny"), samples=1, seq=64, dtype="bfloat16", name="gpt3-tiny")


def made(graph: Graph, **fix: object) -> Plan:
    return plan(Problem(graph, CLUSTER, 32, fix=parse_fix(f"{name}={value}" for name, value in fix.items())))


def with_zero(found: Plan, *zeros: int) -> Plan:
    """The plan with a ZeRO stage for each of its stages."""
    stages = [
        replace(stage, strategies=tuple(replace(strategy, zero=zero) for strategy in stage.strategies))
        for stage, zero in zip(found.stages, zeros, strict=True)
    ]
    return replace(found, stages=tuple(stages))


@pytest.mark.parametrize("zeros", [(0, 1), (1, 3), (2, 0), (3, 2)])
def test_a_stage_takes_what_its_own_zero_says(graph, zeros):
    base = made(graph, dp=4, tp=1, pp=2, zero=0, recompute="none", micro_batches=2)
    by_zero = {zero: costs(graph, with_zero(base, zero, zero), CLUSTER) for zero in zeros}
    found = costs(graph, with_zero(base, *zeros), CLUSTER)
    for stage, zero in enumerate(zeros):
        # Each item is rounded up.
        assert found.memory[stage].items() == pytest.approx(by_zero[zero].memory[stage].items(), abs=len(graph.blocks))
        for name in ("seconds", "collective_seconds", "collective_bytes"):
            ours, theirs = getattr(found, name), getattr(by_zero[zero], name)
            kinds = ("forward", "backward", "reduce", "update")
            assert [ours[stage, kind] for kind in kinds] == pytest.approx([theirs[stage, kind] for kind in kinds])


def test_blocks_of_a_stage_take_what_their_own_zero_says(graph):
    """State and the end of a step add up over blocks, whatever divides the others."""
    base = made(graph, dp=8, tp=1, pp=1, zero=0, recompute="none", micro_batches=2)
    (stage,) = base.stages
    half = len(stage.blocks) // 2
    mixed = replace(
        base, stages=(replace(stage, strategies=tuple(
            replace(strategy, zero=3 if index < half else 1) for index, strategy in enumerate(stage.strategies)
        )),),
    )  # fmt: skip
    memory = costs(graph, mixed, CLUSTER).memory[0]
    elements = [0, 0]
    for index, block in enumerate(graph.blocks):
        elements[index < half] += sum(graph.tensor[name].elements for name in block.parameters)
    of_one, of_three = elements
    # bf16 and Adam: 2 bytes of each parameter, 2 of its gradient, 12 of the optimizer's.
    assert memory.parameters == 2 * of_one + 2 * of_three / 8
    assert memory.gradients == 2 * of_one + 2 * of_three / 8
    assert memory.optimizer == 12 * (of_one + of_three) / 8


def test_selective_recomputation_takes_attention_once_more_and_keeps_less(graph):
    """Of each of the layers, whatever the others do; what has no attention is as it was."""
    base = made(graph, dp=8, tp=1, pp=1, zero=0, recompute="none", micro_batches=2)
    (stage,) = base.stages

    def priced(*what: str) -> tuple[float, float, int]:
        """Backward seconds and kept bytes, where the blocks recompute that, the last of it to the end."""
        chosen = [*what, *[what[-1]] * (len(stage.blocks) - len(what))]
        strategies = tuple(replace(s, recompute=w) for s, w in zip(stage.strategies, chosen, strict=True))
        found = costs(graph, replace(base, stages=(replace(stage, strategies=strategies),)), CLUSTER)
        return found.seconds[0, "forward"], found.seconds[0, "backward"], found.memory[0].activations

    attention = [
        divided_cost(graph, block, (), Division(), item_bytes(graph, "bf16"))
        for block in stage.blocks
        if ".h." in block
    ]
    none, all_of_it, first = priced("none"), priced("selective"), priced("selective", "selective", "none")
    layers = len(attention)
    assert layers == len(stage.blocks) - 2
    ratio, device = stage.samples // 8 / graph.samples, CLUSTER.device
    (again,) = {
        replace(cost, repeated=cost.attention).repeated_seconds(device, peak_flops(device, "bf16"), ratio)
        for cost in attention
    }
    assert again > 0
    assert all_of_it[0] == first[0] == none[0]
    assert all_of_it[1] - none[1] == pytest.approx(layers * again)
    assert first[1] - none[1] == pytest.approx(again)
    # A fused kernel's log-sum-exp: 4 bytes of each of 4 heads' rows.
    rows = 64 * (stage.samples // 8)
    assert (none[2] - all_of_it[2], none[2] - first[2]) == (layers * 4 * 4 * rows, 4 * 4 * rows)
