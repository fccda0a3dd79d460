"""Blocks divided in every way: kept bytes, FLOPs and collectives against the papers' formulas and counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster import Link, parse_cluster
from partita.cost import all_gather_seconds, all_reduce_seconds
from partita.cost.block import BlockCost, block_cost, divided_cost
from partita.cost.division import ClassCut, Division, along_sequence
from partita.cost.precision import item_bytes
from partita.graph.cuts import block_cuts
from partita.plugins.capture_huggingface import capture_config

LAYER = "transformer.h.1"
S, B, H, A = 128, 2, 96, 8
SBH = S * B * H
# Two norms keep mean and deviation of every token, 4 bytes each, and both stay whole under tensor parallelism.
STATISTICS = 2 * 8 * S * B


def gpt(dropout: float = 0.1):
    config = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh",
              "vocab_size": 512, "n_positions": S, "n_embd": H, "n_layer": 2, "n_head": A,
              "attn_pdrop": dropout, "embd_pdrop": dropout, "resid_pdrop": dropout}  # fmt: skip
    return capture_config(config, seq=S, samples=B, dtype="float16")


GRAPH = gpt()


def layer(tp: int = 1, shards: int = 1, graph=GRAPH, block: str = LAYER, **division) -> BlockCost:
    cuts = block_cuts(graph, block)
    names = {cut.name: None for cut in cuts} if tp * shards > 1 else {}
    divided = Division(tuple(ClassCut(name, tp, shards) for name in names), **division)
    return divided_cost(graph, block, cuts, divided, item_bytes(graph, "fp16"))


# Korthikanti et al., 2022, table 2: bytes of activations that a layer keeps.
@pytest.mark.parametrize(
    ("division", "formula"),
    [
        ({}, lambda t: SBH * (34 + 5 * A * S / H)),
        ({"tp": 2}, lambda t: SBH * (10 + 24 / t + 5 * A * S / (H * t))),
        ({"tp": 8}, lambda t: SBH * (10 + 24 / t + 5 * A * S / (H * t))),
        ({"tp": 4, "sequence": 4}, lambda t: SBH / t * (34 + 5 * A * S / H)),
        ({"tp": 4, "selective": True}, lambda t: SBH * (10 + 24 / t)),
        ({"tp": 4, "sequence": 4, "selective": True}, lambda t: SBH * 34 / t),
        ({"context": 4, "selective": True}, lambda t: SBH * (34 - 4) / 4 + 4 * SBH / 4),
    ],
)
def test_kept_bytes_are_the_paper_s(division, formula):
    found = layer(attention="unfused", **division)
    statistics = STATISTICS / (division.get("sequence", 1) * division.get("context", 1))
    assert found.saved_bytes == pytest.approx(formula(division.get("tp", 1)) + statistics)
    assert not found.unknown


def test_without_dropout_scores_are_kept_once():
    with_it, without = layer(attention="unfused"), layer(attention="unfused", graph=gpt(0.0))
    # Softmax's result in 2 bytes, and with dropout its own result, in 2 more, and its mask; two masks more beside.
    assert with_it.saved_bytes - without.saved_bytes == 3 * A * S * S * B + 2 * SBH


def test_a_fused_kernel_keeps_no_scores():
    fused, selective = layer(), layer(selective=True)
    assert fused.saved_bytes == SBH * 34 + STATISTICS + 4 * A * S * B
    assert selective.saved_bytes == SBH * 34 + STATISTICS
    # It skips what the causal mask hides; four kernels don't.
    assert layer(attention="unfused").flops.sum() - fused.flops.sum() == 2 * B * S * S * H


def test_attention_alone_is_computed_again_in_the_selective_mode():
    for attention, flops in (("fused", 2), ("unfused", 4)):
        found = layer(selective=True, attention=attention)
        assert found.flops[found.repeated].sum() == flops * B * S * S * H
        assert layer(attention=attention).repeated.sum() == 0


def test_weights_take_half_of_the_backward_pass_of_their_products():
    found = layer(tp=4)
    assert found.flops[found.weighted].sum() == 24 * B * S * H * H / 4
    device = replace(
        parse_cluster("1xa100-80gb").device, memory_bytes_per_second=1e30, op_seconds=0.0, attention_efficiency=1.0,
        matmul_efficiency=((0.0, 1.0),),
    )  # fmt: skip
    products, attention = 24 * B * S * H * H / 4, 2 * B * S * S * H / 4
    assert found.weight_seconds(device, 1e12, 3.0) == pytest.approx(3 * products / 1e12)
    assert found.compute_seconds(device, 1e12, 3.0) == pytest.approx(3 * (products + attention) / 1e12)
    assert found.repeated_seconds(device, 1e12, 3.0) == 0


def test_sequence_parallelism_moves_as_much_as_tensor_parallelism_does_and_gathers_inputs_again():
    plain, sequence = layer(tp=4), layer(tp=4, sequence=4)
    whole = 2 * SBH
    assert plain.reductions == plain.entries == (whole, whole)
    assert plain.exchanges == ()
    assert sequence.reductions == sequence.entries == ()
    counted = [(found.kind, found.phase, found.size_bytes) for found in sequence.exchanges]
    assert sorted(counted) == sorted(
        [("reduce_scatter", "forward", whole), ("all_gather", "forward", whole)] * 2
        + [("reduce_scatter", "backward", whole), ("all_gather", "backward", whole), ("all_gather", "backward", whole)]
        * 2
    )
    link = Link(1e9)
    groups = {"tensor": (4, link)}
    assert sequence.exchange_seconds("forward", groups, 1.0) == pytest.approx(plain.reduction_seconds(4, link, 1.0))
    assert sequence.exchange_seconds("backward", groups, 1.0) == pytest.approx(
        plain.entry_seconds(4, link, 1.0) + 2 * all_gather_seconds(whole, 4, link)
    )
    assert sequence.flops.tolist() == plain.flops.tolist()


def test_a_loss_is_summed_whole_whatever_happens_to_the_sequence():
    found = layer(tp=2, sequence=2, block="head")
    (scalar,) = (cut for cut in block_cuts(GRAPH, "head") if cut.name == "vocabulary")
    assert not scalar.reductions
    assert {(one.kind, one.phase) for one in found.exchanges} == {
        ("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward"),
    }  # fmt: skip


def test_context_parallelism_divides_all_but_keys_and_values():
    plain, context = layer(), layer(context=4)
    assert context.flops.sum() * 4 == plain.flops.sum()
    counted = sorted((found.kind, found.axis, found.phase, found.size_bytes) for found in context.exchanges)
    assert counted == sorted(
        [("all_gather", "context", "forward", 2.0 * SBH), ("reduce_scatter", "context", "backward", 2.0 * SBH)] * 2
    )
    assert (context.trained, context.frozen) == (plain.trained, plain.frozen)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_shards_compute_the_same_once_more_and_keep_what_enters_them(shards):
    plain, found = layer(tp=1, attention="unfused"), layer(shards=shards, attention="unfused")
    assert found.flops.sum() == pytest.approx(plain.flops.sum())
    assert found.flops[found.repeated].sum() == pytest.approx(plain.flops.sum())
    # Inputs of two norms and of two classes, two masks of dropout.
    assert found.saved_bytes == SBH * (4 * 2 + 2) + STATISTICS
    assert found.reductions == found.entries == ()
    # Of the attention, one shard: three tensors and the result, scores with dropout, and one gradient of the scores.
    # At many shards the three gradients of an addition outside are more.
    inside = (8 * SBH + 5 * A * S * S * B) / shards
    gradients = (8 * SBH + 2 * A * S * S * B) / shards
    assert found.temporary_bytes == pytest.approx(inside + max(gradients, 6 * SBH))


def test_shards_on_every_device_of_a_tensor_group():
    plain, found = layer(tp=2, graph=gpt(0.0)), layer(tp=2, shards=2, graph=gpt(0.0))
    assert found.reductions == plain.reductions
    assert found.entries == plain.entries
    assert found.trained == plain.trained
    assert found.flops.sum() == pytest.approx(plain.flops.sum())
    assert len(found.flops) > len(plain.flops)


def test_nothing_divided_is_what_one_device_does():
    cuts, item = block_cuts(GRAPH, LAYER), item_bytes(GRAPH, "fp16")
    whole, found = block_cost(GRAPH, LAYER, cuts, 1, item), layer()
    assert whole.flops.tolist() == found.flops.tolist()
    assert whole.saved_bytes == found.saved_bytes
    assert whole.temporary_bytes == found.temporary_bytes


def test_samples_divide_values_and_not_weights():
    plain, found = layer(), layer(samples=2)
    assert found.flops.sum() * 2 == plain.flops.sum()
    assert found.saved_bytes * 2 == plain.saved_bytes
    assert (found.trained, found.weight_bytes.tolist()) == (plain.trained, plain.weight_bytes.tolist())


def test_values_along_the_sequence():
    along = along_sequence(GRAPH)
    assert {f"{LAYER}.ln_1", f"{LAYER}.attn.attention", f"{LAYER}.mlp.c_fc", "input_ids"} <= along.keys()
    assert not any(GRAPH.tensor[name].role == "parameter" for name in along)
    assert "cross_entropy" not in along


def test_all_reduces_of_a_class_over_another_axis_are_exchanges():
    cuts = block_cuts(GRAPH, LAYER)
    divided = Division(tuple(ClassCut(name, 4, axis="inner") for name in {cut.name: None for cut in cuts}))
    found = divided_cost(GRAPH, LAYER, cuts, divided, item_bytes(GRAPH, "fp16"))
    assert found.reductions == found.entries == ()
    link = Link(1e9)
    for phase in ("forward", "backward"):
        seconds = found.exchange_seconds(phase, {"inner": (4, link)}, 1.0)
        assert seconds == pytest.approx(2 * all_reduce_seconds(2 * SBH, 4, link))
