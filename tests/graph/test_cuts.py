"""The dims that tensor parallelism cuts: Megatron's pattern for every family, found without naming any layer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from partita.errors import PlanError
from partita.graph import Block, Graph, Op, Tensor
from partita.graph.cuts import CutClass, block_cuts
from partita.plugins.capture_huggingface import capture_config

SMALL = {"samples": 2, "seq": 8}
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 12, "vocab_size": 101}
NEOX = {
    "model_type": "gpt_neox", "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 12,
    "intermediate_size": 96, "vocab_size": 101,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 12,
    "num_key_value_heads": 4, "intermediate_size": 80, "vocab_size": 101,
}  # fmt: skip
VIT = {
    "model_type": "vit", "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 12, "intermediate_size": 96,
    "image_size": 32, "patch_size": 8, "num_labels": 7,
}  # fmt: skip
SWIN = {
    "model_type": "swin", "embed_dim": 48, "depths": [2], "num_heads": [12], "window_size": 4, "image_size": 32,
    "num_labels": 7, "drop_path_rate": 0.0,
}  # fmt: skip


def graph_of(values: dict) -> Graph:
    arguments = SMALL if "vocab_size" in values else {"samples": 2}
    return capture_config(values, **arguments)


@dataclass(frozen=True)
class Pattern:
    """What one layer must show: parameters, by their path in it, with (dim, parts), for the heads and for the MLP."""

    values: dict
    layer: str
    attention: dict[str, tuple[int, int]]
    mlp: dict[str, tuple[int, int]]
    limits: tuple[tuple[str, int], ...]
    width: int


def row(*paths: str, dim: int = 1) -> dict[str, tuple[int, int]]:
    return {f"{path}.weight": (dim, 1) for path in paths}


def column(*paths: str, dim: int = 0, parts: int = 1, bias: bool = True) -> dict[str, tuple[int, int]]:
    found = {f"{path}.weight": (dim, parts) for path in paths}
    return found | ({f"{path}.bias": (0, parts) for path in paths} if bias else {})


PATTERNS = {
    # Fused [q | k | v], stored [in, out]: three equal parts, each cut by whole heads.
    "gpt2": Pattern(
        GPT2, "transformer.h.1", column("attn.c_attn", dim=1, parts=3) | row("attn.c_proj", dim=0),
        column("mlp.c_fc", dim=1) | row("mlp.c_proj", dim=0), (("heads", 12),), 192,
    ),
    # Fused head by head: whole heads lie together, so it is cut as one part.
    "gpt_neox": Pattern(
        NEOX, "gpt_neox.layers.1", column("attention.query_key_value") | row("attention.dense"),
        column("mlp.dense_h_to_4h") | row("mlp.dense_4h_to_h"), (("heads", 12),), 96,
    ),
    "llama": Pattern(
        LLAMA, "model.layers.1",
        column("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=False) | row("self_attn.o_proj"),
        column("mlp.gate_proj", "mlp.up_proj", bias=False) | row("mlp.down_proj"), (("heads", 12), ("kv_heads", 4)), 80,
    ),
    "vit": Pattern(
        VIT, "vit.layers.1",
        column("attention.q_proj", "attention.k_proj", "attention.v_proj") | row("attention.o_proj"),
        column("mlp.fc1") | row("mlp.fc2"), (("heads", 12),), 96,
    ),
    # The table of position biases has a column for each head and is cut with them.
    "swin": Pattern(
        SWIN, "swin.encoder.layers.0.blocks.1",
        column("attention.q_proj", "attention.k_proj", "attention.v_proj") | row("attention.o_proj")
        | {"attention.relative_position_bias.relative_position_bias_table": (1, 1)},
        column("mlp.fc1") | row("mlp.fc2"), (("heads", 12),), 192,
    ),
}  # fmt: skip


def parameters(graph: Graph, cut: CutClass, layer: str = "") -> dict[str, tuple[int, int]]:
    return {
        name.removeprefix(f"{layer}."): dim for name, dim in cut.dims.items() if graph.tensor[name].role == "parameter"
    }


@pytest.mark.parametrize("name", PATTERNS)
def test_a_layer_is_cut_column_then_row(name: str) -> None:
    wanted = PATTERNS[name]
    graph = graph_of(wanted.values)
    heads, hidden = block_cuts(graph, wanted.layer)
    assert parameters(graph, heads, wanted.layer) == wanted.attention
    assert parameters(graph, hidden, wanted.layer) == wanted.mlp
    assert (heads.name, heads.limits, heads.size) == ("heads", wanted.limits, min(size for _, size in wanted.limits))
    assert (hidden.name, hidden.limits, hidden.size) == ("hidden", (("width", wanted.width),), wanted.width)
    for cut, projection in ((heads, wanted.attention), (hidden, wanted.mlp)):
        assert not cut.pads
        # One all-reduce forward, of the row-parallel projection's result; one backward, of what the column reads.
        (summed,), (entered,) = cut.reductions, cut.entries
        last = f"{wanted.layer}.{list(projection)[-1]}" if name != "swin" or cut is hidden else None
        assert last is None or last in graph.producer[summed].inputs
        assert graph.producer[summed].kind == "linear"
        assert graph.tensor[summed].elements == graph.tensor[entered].elements
    # What isn't cut is whole on every device: norms, and the biases added after the all-reduce.
    (block,) = (b for b in graph.blocks if b.name == wanted.layer)
    whole = {p.removeprefix(f"{wanted.layer}.") for p in block.parameters} - wanted.attention.keys() - wanted.mlp.keys()
    assert {len(graph.tensor[f"{wanted.layer}.{p}"].shape) for p in whole} == {1}


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_is_cut_and_padded_in_embedding_and_head(tied: bool) -> None:
    graph = graph_of({**GPT2, "tie_word_embeddings": tied})
    (first,), (last,) = block_cuts(graph, "embedding"), block_cuts(graph, "head")
    assert parameters(graph, first) == {"transformer.wte.weight": (0, 1)}
    assert parameters(graph, last) == {"transformer.wte.weight" if tied else "lm_head.weight": (0, 1)}
    for cut in (first, last):
        assert (cut.name, cut.size, cut.pads, cut.limits) == ("vocabulary", 101, True, (("vocabulary", 101),))
        cut.require(8, "head")
    # The embedding's result is summed; cross entropy completes its own, only the gradient of what it reads is summed.
    assert (first.reductions, first.entries) == (("transformer.wte",), ())
    assert (last.reductions, last.entries) == ((), ("transformer.ln_f",))


def test_position_tables_stay_whole() -> None:
    graph = graph_of(GPT2)
    cut = {name for found in block_cuts(graph, "embedding") for name in found.dims}
    assert "transformer.wpe.weight" not in cut


@pytest.mark.parametrize(
    ("heads", "tp", "remainder", "works", "near"),
    [
        (52, 8, 4, "1, 2, 4, 13, 26 and 52", "4 and 13"),
        (12, 8, 4, "1, 2, 3, 4, 6 and 12", "6 and 12"),
        (40, 3, 1, "1, 2, 4, 5, 8, 10, 20 and 40", "2 and 4"),
        (28, 8, 4, "1, 2, 4, 7, 14 and 28", "7 and 14"),
        (12, 24, 12, "1, 2, 3, 4, 6 and 12", "12"),
    ],
)
def test_c10_heads_that_tp_does_not_divide(heads: int, tp: int, remainder: int, works: str, near: str) -> None:
    graph = graph_of({**GPT2, "n_head": heads, "n_embd": 4 * heads})
    found, _ = block_cuts(graph, "transformer.h.0")
    with pytest.raises(PlanError) as error:
        found.require(tp, "transformer.h.0")
    assert str(error.value) == (
        f'tp={tp} does not divide heads={heads} (block "transformer.h.0"); {works} do. '
        f"The remainder is {remainder}; nearest: {near}."
    )
    for size in range(1, heads + 1):
        if heads % size == 0:
            found.require(size, "transformer.h.0")


@pytest.mark.parametrize(
    ("tp", "words"),
    [
        (3, ["tp=3", "kv_heads=4", "remainder is 1", "1, 2 and 4 do", "nearest: 2 and 4"]),
        # 12 query heads divide by 6; what works must divide the 4 of keys and values as well.
        (6, ["tp=6", "kv_heads=4", "remainder is 4", "1, 2 and 4 do", "nearest: 4."]),
        (5, ["tp=5", "heads=12", "remainder is 2", "1, 2 and 4 do"]),
    ],
)
def test_grouped_query_heads_name_what_binds(tp: int, words: list[str]) -> None:
    heads, _ = block_cuts(graph_of(LLAMA), "model.layers.0")
    with pytest.raises(PlanError) as error:
        heads.require(tp, "model.layers.0")
    for word in words:
        assert word in str(error.value)


def test_an_mlp_names_its_width() -> None:
    _, hidden = block_cuts(graph_of(LLAMA), "model.layers.0")
    with pytest.raises(PlanError, match=r'tp=3 does not divide width=80 \(block "b"\); 1, 2, 4, 5, 8'):
        hidden.require(3, "b")


def pair(bias_role: str) -> Graph:
    """Two linears around attention with a bias for each head, which is a parameter or a buffer."""
    parameter = [("q", (8, 8)), ("o", (8, 8))] + ([("bias", (1, 4, 5, 5))] if bias_role == "parameter" else [])
    tensors = [Tensor("x", (2, 5, 8), role="input", gradient=False), Tensor("start", (8,), role="parameter")]
    tensors += [Tensor(name, shape, role="parameter") for name, shape in parameter]
    if bias_role == "buffer":
        tensors.append(Tensor("bias", (1, 4, 5, 5), role="buffer", gradient=False))
    tensors += [Tensor(name, (2, 5, 8)) for name in ("h", "heads", "mixed", "y")]
    ops = (
        Op("add", "add", ("x", "start"), ("h",), "first"),
        Op("q", "linear", ("h", "q"), ("heads",), "layer"),
        Op("a", "attention", ("heads", "heads", "heads", "bias"), ("mixed",), "layer",
           attributes={"heads": 4, "kv_heads": 4, "causal": False}),
        Op("o", "linear", ("mixed", "o"), ("y",), "layer"),
    )  # fmt: skip
    blocks = (Block("first", ("start",)), Block("layer", tuple(name for name, _ in parameter)))
    return Graph("pair", 2, 5, tuple(tensors), ops, blocks, ("x",), ("y",))


def test_a_constant_that_every_device_has_whole_keeps_the_heads_whole() -> None:
    (found,) = block_cuts(pair("parameter"), "layer")
    assert parameters(pair("parameter"), found) == {"q": (0, 1), "o": (1, 1), "bias": (1, 1)}
    assert block_cuts(pair("buffer"), "layer") == ()


@pytest.mark.parametrize(("bias", "names"), [(False, ["hidden"]), (True, [])])
def test_a_convolution_with_a_bias_is_no_partial_sum(bias: bool, names: list[str]) -> None:
    """Its bias would be added in every piece, and summed."""
    sizes = {"x": (2, 4, 6, 6), "a": (8, 4, 1, 1), "c": (4, 8, 1, 1), "d": (4,), "h": (2, 8, 6, 6), "y": (2, 4, 6, 6)}
    roles = {"x": "input", "a": "parameter", "c": "parameter", "d": "parameter"}
    tensors = tuple(Tensor(name, shape, role=roles.get(name, "value")) for name, shape in sizes.items())
    second = ("h", "c", "d") if bias else ("h", "c")
    ops = (
        Op("first", "conv2d", ("x", "a"), ("h",), "b"),
        Op("second", "conv2d", second, ("y",), "b"),
    )
    owned = ("a", "c", "d") if bias else ("a", "c")
    used = tuple(tensor for tensor in tensors if bias or tensor.name != "d")
    graph = Graph("g", 2, None, used, ops, (Block("b", owned),), ("x",), ("y",))
    assert [cut.name for cut in block_cuts(graph, "b")] == names
