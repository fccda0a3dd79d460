"""A value that all samples share is as large in every micro-batch: T5's bias by distance, of a size known by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.cost.crossing import crossing
from partita.cost.division import Division
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes
from partita.graph import Graph
from partita.planner.branches.traffic import Traffic, values
from partita.planner.joint.boundary import boundary_bytes
from partita.planner.joint.price import Pricing
from partita.planner.joint.stage_ways import Place
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.simulate import simulate
from partita.simulate.stage_graph import stage_graph
from partita.spacetime.lower import lower
from tests.runtime.programs import Layout, plan

HEADS, SEQ, WIDTH, ITEM, TURNS = 4, 8, 16, 4, 2
BIAS, HIDDEN = HEADS * SEQ * SEQ * ITEM, SEQ * WIDTH * ITEM
CLUSTER = parse_cluster("1x8xa100-80gb")
CONFIGS = Path(__file__).parents[1] / "data" / "configs"
# Blocks of the first stage (embedding and the encoder's first layer; all but the decoder's last layer and the head) and
# the values with samples that leave it: hidden states, of the decoder also those of the encoder's end.
CUTS = [(2, 1), (5, 2)]


@cache
def t5(samples: int) -> Graph:
    settings = {
        "model_type": "t5", "d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": HEADS, "vocab_size": 32,
    }  # fmt: skip
    return capture_config(settings, samples=samples, seq=SEQ, name="t5")


@pytest.mark.parametrize(
    ("dp", "tp"), [*(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 1), (2, 1), (1, 2))), (2, 2)]
)
@pytest.mark.parametrize(
    ("cut", "hidden", "samples"), [(*CUTS[0], 1), (*CUTS[0], 8), pytest.param(*CUTS[1], 3, marks=pytest.mark.slow)]
)
def test_planner_simulator_and_queues_say_the_same(cut: int, hidden: int, samples: int, dp: int, tp: int) -> None:
    """Of the first device, which sends to one reader; ``samples`` are those of a copy's turn, captured or not."""
    expected = BIAS + samples * hidden * HIDDEN
    made = plan(t5(samples), Layout(2, dp, tp, TURNS, sizes=(cut, 7 - cut)))
    link = CLUSTER.link(False)
    seconds = link.latency_seconds + expected / link.reached_bytes_per_second
    for graph in (t5(samples), t5(1)):
        boundary = crossing(graph, item_bytes(graph, "fp32"))
        for sizes in (boundary.forward, boundary.backward):
            assert boundary_bytes(sizes[cut], samples * dp / graph.samples, (dp, tp), (dp, tp)) == expected
        simulation = simulate(graph, made, CLUSTER)
        sent = [
            simulation.costs.size_bytes(task.transfer)
            for task in simulation.program.queues[0]
            if task.kind == "send" and task.transfer.what == "value" and task.micro == 0
        ]
        assert (len(sent), sum(sent)) == (hidden + 1, expected)
        for moved in (simulation.costs.table.transfer_forward, simulation.costs.table.transfer_backward):
            assert moved[0, 1, 0, 1] == pytest.approx(seconds, rel=1e-12)
        (edge,) = stage_graph(graph, made).edges
        assert edge.size_bytes == expected * dp
    for device, what in ((0, "value"), (dp * tp, "gradient")):
        tasks = [task for task in lower(t5(samples), made).queues[device] if task.kind == "send" and task.micro == 0]
        assert sum(task.transfer.bytes for task in tasks if task.transfer.what == what) == expected


@pytest.mark.parametrize(("cut", "hidden"), CUTS)
def test_the_searches_price_it_so(cut: int, hidden: int) -> None:
    """The chains' tables and the transfers of stages that form a graph, from unlike widths too."""
    graph, batch = t5(1), 16
    pricing = Pricing(Problem(graph, CLUSTER, batch, precision="fp32", target="partita"), alike(graph))
    link, counted = CLUSTER.link(False), 0
    for family in pricing.families:
        ports = {(shape.dp, shape.width): at for at, shape in enumerate(family.shapes)}
        for (dp, tp), one in ports.items():
            for other in ((dp, tp), (dp, 2 * tp), (dp, tp // 2)):
                if other not in ports or tp + other[1] > 4:
                    continue
                counted += 1
                # From one to two as many: both get all of it from the one.
                times = max(1, other[1] // tp)
                expected = times * (BIAS + batch // TURNS // dp * hidden * HIDDEN)
                seconds = link.latency_seconds + expected / link.reached_bytes_per_second
                table = pricing.table(family, TURNS)
                moved = table.transfer_forward[0, cut, table.port[one], table.port[ports[other]]]
                assert moved == pytest.approx(seconds, rel=1e-12)
                traffic = Traffic(pricing, family, batch // TURNS, values(pricing))
                places = Place(0, cut, 0, one), Place(cut, 7, family.shapes[one].devices // family.unit, ports[other])
                assert traffic.moved(places)[0][0, 1][0] == pytest.approx(seconds, rel=1e-12)
                if times == 1:
                    leaving = traffic.leaving[:, 0, cut] * ([traffic.own_share[one]] * 2 + [1.0] * 2)
                    assert leaving[0] + leaving[2] == leaving[1] + leaving[3] == expected
    assert counted > 10


def test_blocks_keep_as_much_as_those_captured_with_all_samples() -> None:
    one, eight, device = t5(1), t5(8), CLUSTER.device
    groups, item = alike(one), item_bytes(one, "fp32")
    each = [[BlockCosts(graph, groups, item).of(kind, Division()) for kind in groups.kinds] for graph in (one, eight)]
    # In the decoder also that of its attention to the encoder: zeros, laid out for each sample without memory.
    biases = {"encoder": 1, "decoder": 2}
    for block, few, many in zip(one.blocks, *each, strict=True):
        assert few.kept_bytes(device, 8.0) == many.kept_bytes(device, 1.0), block.name
        count = biases.get(block.name.partition(".block.")[0], 0)
        assert few.shared_bytes == many.shared_bytes == BIAS * count, block.name


@pytest.mark.parametrize(("model", "expands"), [("vit-tiny", 1), ("bert-tiny", 1), ("t5-small", 1)])
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_what_is_laid_out_for_each_sample_grows_with_them(model: str, expands: int, samples: int) -> None:
    """Every tensor that has the samples' dim, and no other."""
    graphs = [load_model(str(CONFIGS / f"{model}.json"), None, "float32", samples=count) for count in (samples, 7)]
    assert sum(op.kind == "expand" for op in graphs[0].ops) == expands
    for one, other in zip(graphs[0].tensors, graphs[1].tensors, strict=True):
        if one.role == "value" and one.shape:
            assert (one.name in graphs[0].sampled) == (one.elements * 7 == other.elements * samples), one.name
            assert (one.name in graphs[0].sampled) == (one.name in graphs[1].sampled)
