"""FLOPs, kept activations, state and collectives against closed formulas and against what was measured on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cluster import Link, parse_cluster
from partita.cost import all_gather_seconds, all_reduce_seconds, block_flops, reduce_scatter_seconds, state_bytes
from partita.cost.alike import alike, tp_sizes
from partita.cost.block import block_cost
from partita.cost.crossing import crossing
from partita.cost.division import tensor_division
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes, peak_flops
from partita.errors import InputError
from partita.graph.cuts import block_cuts
from partita.plugins.capture_huggingface import capture_config
from tests.planner.branches.dags import drawn


def gpt(hidden: int, heads: int, seq: int = 2048, samples: int = 1, layers: int = 2):
    config = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh",
              "vocab_size": 50257, "n_positions": seq, "n_embd": hidden, "n_layer": layers,
              "n_head": heads, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}  # fmt: skip
    return capture_config(config, seq=seq, samples=samples)


LAYER = "transformer.h.1"


@pytest.mark.parametrize(("samples", "hidden", "seq"), [(1, 64, 32), (3, 128, 16), (2, 768, 128)])
def test_flops_of_a_layer_and_of_the_head(samples, hidden, seq):
    graph = gpt(hidden, 4, seq, samples)
    tokens = samples * seq
    assert block_flops(graph, LAYER) == 24 * tokens * hidden**2 + 4 * tokens * seq * hidden
    assert block_flops(graph, "head") == 2 * tokens * hidden * 50257
    assert block_flops(graph, "embedding") == 0


# (hidden, heads, tp, bytes that a layer keeps of one sequence of 2,048 tokens in bf16), measured on an H200 with the
# memory allocator's own counter; the layer of the measurement has no biases in its attention.
KEPT = [
    (1024, 16, 1, 68322304), (1024, 16, 2, 42042368), (2048, 32, 1, 134513664), (2048, 32, 2, 84050944),
    (2560, 32, 1, 168068096), (4096, 32, 1, 268731392), (4096, 32, 2, 167937024), (4096, 32, 4, 117539840),
    (4096, 32, 8, 92341248), (8192, 64, 8, 184648704), (12288, 96, 1, 806126592), (12288, 96, 8, 276956160),
]  # fmt: skip


@pytest.mark.parametrize(("hidden", "heads", "tp", "measured"), KEPT)
def test_kept_activations_are_those_measured(hidden, heads, tp, measured):
    graph = gpt(hidden, heads)
    cost = block_cost(graph, LAYER, block_cuts(graph, LAYER), tp, item_bytes(graph, "bf16"))
    assert cost.saved_bytes == pytest.approx(measured, rel=0.03)
    assert not cost.unknown


# (hidden, heads, tp, micro-batch, forward ms) on the same H200.
FORWARD = [
    (2560, 32, 1, 1, 0.64272), (2560, 32, 1, 4, 2.1933), (4096, 32, 1, 1, 1.2858), (4096, 32, 1, 4, 4.8765),
    (4096, 32, 4, 4, 1.4138), (5120, 40, 1, 2, 3.8775), (5120, 40, 8, 4, 1.2542), (8192, 64, 1, 1, 4.6102),
    (8192, 64, 4, 2, 2.4482), (8192, 64, 8, 4, 2.7159), (12288, 96, 1, 1, 9.922), (12288, 96, 1, 4, 45.092),
    (12288, 96, 4, 4, 10.418), (12288, 96, 8, 1, 1.4944), (1024, 16, 8, 1, 0.3929), (2048, 32, 8, 4, 0.42093),
]  # fmt: skip


def test_forward_seconds_are_near_those_measured():
    device = parse_cluster("1xh200").device
    errors = []
    for hidden, heads, tp, micro, measured in FORWARD:
        graph = gpt(hidden, heads)
        cost = block_cost(graph, LAYER, block_cuts(graph, LAYER), tp, item_bytes(graph, "bf16"))
        seconds = cost.compute_seconds(device, peak_flops(device, "bf16"), micro)
        errors.append(abs(seconds * 1e3 / measured - 1))
    assert max(errors) < 0.35
    assert sum(errors) / len(errors) < 0.13


def test_tensor_parallel_divides_the_work_and_reduces_twice():
    graph = gpt(256, 8, seq=64)
    item = item_bytes(graph, "bf16")
    whole, part = (block_cost(graph, LAYER, block_cuts(graph, LAYER), tp, item) for tp in (1, 4))
    assert part.flops.sum() * 4 == whole.flops.sum()
    # Two all-reduces forward and two backward of [s, h] in bf16, as in Megatron.
    assert part.reductions == part.entries == (64 * 256 * 2,) * 2
    assert whole.reductions == whole.entries == ()
    h = 256
    assert whole.trained == 12 * h * h + 13 * h
    assert part.trained == 12 * h * h // 4 + (3 * h + 4 * h) // 4 + 6 * h


def test_a_padded_vocabulary_rounds_up():
    graph = gpt(64, 4, seq=16)
    cost = block_cost(graph, "embedding", block_cuts(graph, "embedding"), 4, item_bytes(graph, "fp32"))
    assert cost.trained == 12565 * 64 + 16 * 64  # 50257 / 4 = 12564.25


def test_what_crosses_a_cut():
    graph = gpt(64, 4, seq=16, samples=3)
    found = crossing(graph, item_bytes(graph, "bf16"))
    hidden = 3 * 16 * 64 * 2
    assert found.forward_bytes.tolist() == [0, hidden, hidden, hidden, 0]
    assert found.backward_bytes.tolist() == [0, hidden, hidden, hidden, 0]


@pytest.mark.parametrize("seed", range(4))
def test_what_a_block_reads_of_others(seed):
    """Each value once, whatever else passes by in the list."""
    graph = drawn(seed).graph
    found = crossing(graph, item_bytes(graph, "bf16")).entering
    for block, size in zip(graph.blocks, found.of(0.5).tolist(), strict=True):
        made = {name for op in graph.ops if op.block != block.name for name in op.outputs}
        read = {name for op in graph.ops if op.block == block.name for name in op.inputs} & made
        assert size == sum(graph.tensor[name].elements for name in read)


def test_like_blocks_are_found_and_share_their_cuts():
    graph = gpt(64, 4, seq=16, layers=6)
    assert alike(graph).kinds == (0, 1, 1, 1, 1, 1, 1, 7)
    assert tp_sizes(graph, alike(graph), 16) == [1, 2, 4]


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "t5-gated-tiny", "bert-tiny", "swin-odd", "gpt-neox-tiny"])
def test_like_blocks_cost_the_same(name):
    path = Path(__file__).parent.parent / "data" / "configs" / f"{name}.json"
    graph = capture_config(json.loads(path.read_text()))
    groups, item = alike(graph), item_bytes(graph, "bf16")
    for tp in tp_sizes(graph, groups, 4):
        costs = BlockCosts(graph, groups, item)
        for block, kind in zip(graph.blocks, groups.kinds, strict=True):
            cost = costs.of(kind, tensor_division(groups.classes[kind], tp))
            assert cost is costs.of(kind, tensor_division(groups.classes[kind], tp))
            own = block_cost(graph, block.name, block_cuts(graph, block.name), tp, item)
            assert own.flops.tolist() == cost.flops.tolist()
            assert own.activation_bytes.tolist() == cost.activation_bytes.tolist()
            for field in ("saved_bytes", "temporary_bytes", "reductions", "entries", "trained", "frozen", "cuts"):
                assert getattr(own, field) == getattr(cost, field), (block.name, field)


@pytest.mark.parametrize(
    ("precision", "optimizer", "zero", "dp", "parts"),
    [
        ("bf16", "adam", 0, 1, (2, 2, 12)),
        ("fp16", "adam", 0, 8, (2, 2, 12)),
        ("fp32", "adam", 0, 1, (4, 4, 8)),
        ("fp64", "adam", 0, 1, (8, 8, 16)),
        ("bf16", "sgd", 0, 1, (2, 2, 4)),
        ("fp32", "sgd", 0, 1, (4, 4, 0)),
        ("bf16", "adam", 1, 4, (2, 2, 3)),
        ("bf16", "adam", 2, 4, (2, 0.5, 3)),
        ("bf16", "adam", 3, 4, (0.5, 0.5, 3)),
    ],
)
def test_state_per_parameter(precision, optimizer, zero, dp, parts):
    found = state_bytes(precision, optimizer, zero, dp, 1000)
    assert (found.parameters, found.gradients, found.optimizer) == tuple(1000 * part for part in parts)


def test_a_shard_rounds_up():
    assert state_bytes("fp32", "adam", 3, 4, 50).parameters == 13 * 4


def test_collectives():
    link = Link(1e9, latency_seconds=1e-3, efficiency=0.5)
    assert all_reduce_seconds(1e9, 4, link) == pytest.approx(2 * 0.75 * 2 + 4e-3)
    assert reduce_scatter_seconds(1e9, 4, link) == all_gather_seconds(1e9, 4, link) == pytest.approx(1.5 + 2e-3)
    assert all_reduce_seconds(1e9, 1, link) == 0
    assert all_reduce_seconds(0, 8, link) == 0


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError, match="Did you mean 'bf16'"):
        peak_flops(parse_cluster("1xh200").device, "bf61")
