"""Plans that no planner lists, priced stage by stage: as the planner prices those it does, and else counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.draft import drafted
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Axis, Cut, Plan
from partita.planner import parse_fix, plan
from partita.plugins.capture_huggingface import capture_config
from partita.plugins.library.hooks import partita_library
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config
from partita.simulate import simulate
from partita.simulate.costs import Costs, costs
from partita.simulate.differ import difference, sentences
from partita.simulate.stages import Stages

CLUSTER = parse_cluster("4x2xa100-80gb")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_config(config("gpt3-tiny"), samples=1, seq=64, dtype="bfloat16", name="gpt3-tiny")


def made(graph: Graph, cluster=CLUSTER, batch=32, **fix: object) -> Plan:
    return plan(Problem(graph, cluster, batch, fix=parse_fix(f"{name}={value}" for name, value in fix.items())))


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
    with pytest.raises(PlanError, match="shard=3 does not divide heads=4"):
        Stages(graph, shard(found, 3), cluster, alike(graph)).memory(0)


def of_library(graph: Graph, name: str, devices: int, batch: int, **numbers: int) -> tuple[Plan, Costs]:
    cluster = parse_cluster(f"1x{devices}xa100-80gb")
    found = drafted(partita_library()[name], name, Problem(graph, cluster, batch, target="partita"), numbers)
    return found, costs(graph, found, cluster)


def test_a_weight_turn_is_taken_off_the_backward_turn(graph):
    _, plain = of_library(graph, "1f1b", 4, 16)
    _, split = of_library(graph, "zero-bubble", 4, 16)
    for stage in range(4):
        whole = split.seconds[stage, "backward"] + split.seconds[stage, "weight"]
        assert whole == pytest.approx(plain.seconds[stage, "backward"])
        assert 0 < split.seconds[stage, "weight"] < split.seconds[stage, "backward"]
        assert (stage, "weight") not in plain.seconds
    assert split.memory == plain.memory


def test_sequence_parallelism_sums_the_gradients_of_what_every_device_has(graph):
    _, found = of_library(graph, "sequence-parallel", 4, 16)
    h, layers, positions = 128, 4, 128
    # Positions; of a layer two norms and the biases of two projections; the last norm.
    elements = positions * h + layers * (2 * 2 * h + 2 * h) + 2 * h
    assert found.collective_bytes[0, "reduce"] == pytest.approx(2 * 3 / 4 * elements * 2)


def test_an_interlaced_device_has_the_words_once_and_its_layers(graph):
    found, priced = of_library(graph, "interlaced", 4, 16)
    h, words, positions = 128, 257, 128
    ends, stage, head = priced.memory[0], priced.memory[1], priced.memory[-1]
    assert ends.parameters == 2 * (-(-words // 4) * h + positions * h)
    assert stage.parameters == 2 * (12 * h * h + 13 * h)
    # The head's table is the embedding's, on the same devices: its norm is all that it adds.
    assert head.parameters == 2 * 2 * h
    assert [found.stages[i].width for i in (0, 1, -1)] == [4, 1, 4]


@pytest.mark.slow
def test_experts_are_not_summed_over_their_own_axis():
    from partita.cli.model import load_model

    mixture = load_model("mixture-tiny", None, "bfloat16")
    found, priced = of_library(mixture, "expert-parallel", 4, 16)
    experts = sum(t.elements for t in mixture.tensors if t.gradient and t.role == "parameter" and len(t.shape) == 3)
    trained = sum(t.elements for t in mixture.tensors if t.gradient and t.role == "parameter")
    assert priced.memory[0].gradients == 2 * (trained - experts + experts // 4)
    assert priced.collective_bytes[0, "reduce"] == pytest.approx(2 * 3 / 4 * (trained - experts) * 2)
    # Of four layers, what goes to the experts and what comes back: each has room for 40 of a sample's 64 tokens.
    samples, room, width = 4, 40, 32
    exchanged = 4 * 2 * (3 / 4) * samples * 4 * room * width * 2
    # And the loss, a float32, is summed over all of them.
    assert priced.collective_bytes[0, "forward"] == pytest.approx(exchanged + 2 * (3 / 4) * 4)
    assert found.stages[0].width == 4


def test_a_plan_that_no_formula_speaks_of_is_told_by_its_queues(graph):
    cluster = parse_cluster("1x4xa100-80gb")
    found, priced = of_library(graph, "interlaced", 4, 16)
    assert priced.table is None
    simulated = simulate(graph, found, cluster)
    differs = difference(simulated, found, cluster)
    assert differs.seconds == sum(differs.items().values()) == simulated.step_seconds
    assert sentences(differs, simulated, found, cluster) == [
        "No formula speaks of such a plan: the queues alone say what it takes."
    ]


def test_a_cut_along_an_axis_that_the_stage_lacks_is_refused(graph):
    found = shard(made(graph, parse_cluster("1xa100-80gb"), batch=8, micro_batches=1), 2)
    bare = replace(found, stages=(replace(found.stages[0], other_axes=()),))
    with pytest.raises(PlanError, match='"shard"; its stage has data, tensor, micro'):
        Stages(graph, bare, CLUSTER, alike(graph)).memory(0)
