"""The graph of a plan's stages: paths, layers, what goes over its edges, and both forms of a plan."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import networkx as nx
import pytest

from partita.cluster import parse_cluster
from partita.errors import PlanError
from partita.graph.edges import paths_behind
from partita.plan import Plan
from partita.simulate import simulate
from partita.simulate.stage_graph import Edge, Forms, StageGraph, by_graph, forms, sentence, stage_graph
from tests.towers import WIDTH, plan, towers

CLUSTER = parse_cluster("1x4xa100-80gb")
MIB = 2**20


def graph_of(edges: list[tuple[int, int]], stages: int) -> StageGraph:
    return StageGraph(tuple(Edge(*pair, (), 0.0) for pair in edges), tuple(paths_behind(edges, stages)))


@pytest.mark.parametrize(
    ("edges", "stages", "layers", "longest"),
    [
        ([], 1, ((0,),), (0,)),
        ([(0, 1), (1, 2)], 3, ((0,), (1,), (2,)), (0, 1, 2)),
        ([(0, 1), (1, 2), (0, 2)], 3, ((0,), (1,), (2,)), (0, 1, 2)),  # a skip changes nothing
        ([(0, 1), (0, 2), (1, 3), (2, 3)], 4, ((0,), (1, 2), (3,)), (0, 1, 3)),  # a diamond
        ([(0, 3), (1, 3), (2, 3)], 4, ((0, 1, 2), (3,)), (0, 3)),  # towers
        ([(0, 2), (1, 3), (2, 3)], 4, ((0,), (1, 2), (3,)), (0, 2, 3)),  # the short one beside the long one's end
        ([(0, 1), (0, 2), (2, 3), (3, 4), (1, 5), (4, 5)], 6, ((0,), (2,), (3,), (1, 4), (5,)), (0, 2, 3, 4, 5)),
        ([(0, 1), (0, 2), (0, 3)], 4, ((0,), (1, 2, 3)), (0, 1)),  # three heads
        ([], 2, ((0, 1),), (0,)),  # nothing in common
    ],
)
def test_layers_and_the_longest_path(edges, stages, layers, longest):
    found = graph_of(edges, stages)
    assert (found.layers, found.longest, found.depth) == (layers, longest, len(longest))
    assert found.is_chain == (len(longest) == stages)


@pytest.mark.parametrize("seed", range(40))
def test_any_graph(seed):
    """The depth is that of networkx; every edge goes to a later layer; the longest path is one."""
    random = Random(seed)
    stages = random.randint(1, 9)
    pairs = [(maker, reader) for reader in range(stages) for maker in range(reader) if random.random() < 0.3]
    found, graph = graph_of(pairs, stages), nx.DiGraph(pairs)
    graph.add_nodes_from(range(stages))
    assert found.depth == nx.dag_longest_path_length(graph) + 1
    layer_of = {stage: index for index, layer in enumerate(found.layers) for stage in layer}
    assert sorted(layer_of) == list(range(stages))
    assert all(layer_of[maker] < layer_of[reader] for maker, reader in pairs)
    assert len(found.longest) == found.depth
    assert nx.is_path(graph, found.longest)


@pytest.mark.parametrize("micro_batches", [4, 8, 16])
def test_edges_carry_what_the_queues_send(micro_batches):
    graph, made = towers(), plan(towers(), micro_batches=micro_batches)
    found = stage_graph(graph, made)
    # 256 × 1024 bfloat16 numbers are half a MiB, of each of a micro-batch's samples.
    size = 0.5 * MIB * 16 / micro_batches
    assert found.edges == (Edge(0, 2, ("right0",), size), Edge(1, 3, ("left",), size), Edge(2, 3, ("right1",), size))
    simulation = simulate(graph, made, CLUSTER)
    sent: dict[tuple[int, int], float] = {}
    for queue in simulation.program.queues.values():
        for task in queue:
            if task.kind == "send" and task.transfer.what == "value" and task.micro == 0:
                key = (task.transfer.source, task.transfer.target)
                sent[key] = sent.get(key, 0.0) + simulation.costs.size_bytes(task.transfer)
    assert {(edge.maker, edge.reader): edge.size_bytes for edge in found.edges} == sent


def test_a_value_that_two_blocks_of_a_stage_read_goes_over_the_edge_once():
    stages = (("right0",), ("left", "right1"), ("head",))
    found = stage_graph(towers(), plan(towers(), stages=stages))
    assert [(edge.maker, edge.reader, edge.values) for edge in found.edges] == [
        (0, 1, ("right0",)), (1, 2, ("left", "right1")),
    ]  # fmt: skip
    assert found.is_chain


@pytest.mark.parametrize("schedule", ["kfkb", "1f1b"])
def test_both_forms_are_those_plans_simulated(schedule):
    graph = towers()
    made = plan(graph, schedule)
    found = forms(graph, made, CLUSTER, simulate(graph, made, CLUSTER))
    assert found == forms(graph, made, CLUSTER)
    assert (found.graph, found.chain) == (plan(graph, "kfkb"), plan(graph, "1f1b"))
    # Of 8 micro-batches as many as stages on the longest path, or as come after in the list.
    assert [stage.in_flight for stage in found.graph.predicted.breakdown.stages] == [3, 2, 2, 1]
    assert [stage.in_flight for stage in found.chain.predicted.breakdown.stages] == [4, 3, 2, 1]
    # A micro-batch's input is what a linear layer keeps: two samples of half a MiB.
    both = (form.predicted.breakdown.stages for form in (found.graph, found.chain))
    less = [chain.memory.total - own.memory.total for own, chain in zip(*both, strict=True)]
    assert less == [MIB, MIB, 0, 0]


def test_other_schedules_have_one_form():
    made = plan(towers(), "gpipe")
    assert forms(towers(), made, CLUSTER) is None
    assert sentence(stage_graph(towers(), made), None) == "The stages form a graph, whose longest path has 3 of 4."


def test_rounds_of_two_are_compared_as_they_are():
    graph = towers()
    made = plan(graph, k=2)
    found = forms(graph, made, CLUSTER)
    assert found.graph == made
    assert "by it (kfkb k=2) they hold 6, 4, 4 and 2 micro-batches" in sentence(stage_graph(graph, made), found)
    assert by_graph(made).order.arguments == {"k": 1, "depth": 0}


def test_the_sentence_has_the_numbers_of_both():
    graph = towers()

    def form(schedule: str, seconds: float, bubble: float, *peaks: int) -> Plan:
        made = plan(graph, schedule)
        peak_bytes = {device: peak * 2**30 for device, peak in enumerate(peaks)}
        said = replace(made.predicted, step_seconds=seconds, bubble_fraction=bubble, peak_bytes=peak_bytes)
        return replace(made, predicted=said)

    both = Forms(form("kfkb", 0.004, 0.25, 1, 3, 2, 1), form("1f1b", 1.2, 0.5, 1, 2, 7, 1))
    assert sentence(stage_graph(graph, both.graph), both) == (
        "The stages form a graph, whose longest path has 3 of 4: by it (kfkb k=1) they hold 3, 2, 2 and 1 "
        "micro-batches and at most 3.00 GiB, as a chain (1f1b) 4, 3, 2 and 1 and 7.00 GiB; the step takes 4 ms with a "
        "bubble of 25.0%, as a chain 1.2 s with 50.0%."
    )


def test_a_value_without_samples_is_as_large_in_every_micro_batch():
    """The mask, made of a parameter instead of the batch."""
    graph = towers()
    ops = tuple(replace(op, inputs=("left.weight",)) if op.name == "mask" else op for op in graph.ops)
    tensors = tuple(replace(one, shape=(WIDTH, WIDTH)) if one.name == "mask" else one for one in graph.tensors)
    (edge,) = (
        edge for edge in stage_graph(replace(graph, ops=ops, tensors=tensors), plan(graph)).edges if edge.reader == 3
        and edge.maker == 1
    )  # fmt: skip
    assert edge.values == ("mask", "left")
    assert edge.size_bytes == 2 * WIDTH * WIDTH + MIB


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((2, 0, 1, 3), 'stage 0 reads "right0", which stage 1 makes'),
        ((0, 1, 2), "the plan has 3 blocks"),
    ],
)
def test_what_is_no_graph_of_this_model(order, message):
    made = plan(towers())
    with pytest.raises(PlanError, match=message):
        stage_graph(towers(), replace(made, stages=tuple(made.stages[stage] for stage in order)))
