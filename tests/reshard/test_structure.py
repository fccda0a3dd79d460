"""Fused and padded tensors, by labelled rows: what each rank has, and that nothing moves on a way there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from partita.adapters.checkpoint.boxes import whole
from partita.adapters.checkpoint.catalogue import PARAMETER, Catalogue, require_whole
from partita.adapters.checkpoint.fill import Files, fill
from partita.adapters.checkpoint.padding import without_padding
from partita.adapters.checkpoint.read_dcp import read_dcp
from partita.adapters.checkpoint.sources import read_checkpoint
from partita.adapters.checkpoint.structure import Rows, interleaved, names_of, one_after_another
from partita.adapters.checkpoint.target import Part, Target, require_model
from partita.adapters.checkpoint.write_dcp import dcp_outputs
from partita.adapters.torch.weights import cut, join
from partita.errors import InputError
from partita.spacetime.program import Shard
from tests.reshard.distributed import for_layout, graph_of, labelled, save
from tests.runtime.programs import Layout

NAME = "fused"


def by_rank(catalogue: Catalogue, parts: list[Part]) -> list[Tensor]:
    """What each rank has of the tensor, padding zero."""
    entry, found = catalogue.tensors[NAME, PARAMETER], []
    with Files() as files:
        for part in parts:
            tensor = torch.zeros(part.local_shape, dtype=getattr(torch, entry.dtype))
            for dense, local in part.boxes:
                fill(entry, dense, tensor[tuple(slice(a, b) for a, b in local)], files)
            found.append(tensor)
    return found


def parts(shape: tuple[int, ...], shard: Shard) -> list[Part]:
    return [Part(NAME, shape, shard, piece, copy=False) for piece in range(shard.pieces)]


def through(folder: Path, source: Path, held: list[Part]) -> Path:
    """The checkpoint written by ranks that hold these parts."""
    any_target = for_layout(graph_of("gpt2"), Layout())
    goal = Target(any_target.plan, any_target.graph, tuple({NAME: part} for part in held))
    folder.mkdir()
    for output in dcp_outputs(read_dcp(source), goal):
        output.write(folder / output.name)
    return folder


def test_gate_and_up_in_one_tensor(tmp_path: Path) -> None:
    # Rows g0 … g3 are 0 … 3, u0 … u3 are 10 … 13.
    dense = torch.tensor([[0.0], [1], [2], [3], [10], [11], [12], [13]])
    wanted = {
        2: [[0, 1, 10, 11], [2, 3, 12, 13]], 4: [[0, 10], [1, 11], [2, 12], [3, 13]], 1: [[0, 1, 2, 3, 10, 11, 12, 13]]
    }  # fmt: skip
    save({"model": {NAME: dense}}, tmp_path / "0")
    folder = tmp_path / "0"
    for step, tp in enumerate((2, 4, 1, 2), 1):
        held = parts((8, 1), Shard(dim=0, parts=2, pieces=tp, size=8, padded=8))
        folder = through(tmp_path / str(step), folder, held)
        found = by_rank(read_dcp(folder), held)
        assert [tensor.flatten().tolist() for tensor in found] == wanted[tp]
        # The runtime cuts and joins them alike.
        assert all(torch.equal(cut(dense, part.shard, part.piece), t) for part, t in zip(held, found, strict=True))
        assert torch.equal(join(found, held[0].shard), dense)


@pytest.mark.parametrize(
    ("rows", "tp", "padded", "each"),
    # The last is padded to 64 rows a rank, as Megatron does.
    [(65535, 4, 65536, 16384), (65535, 2, 65536, 32768), (65535, 1, 65535, 65535), (128256, 8, 128512, 16064)],
)
def test_a_padded_vocabulary(tmp_path: Path, rows: int, tp: int, padded: int, each: int) -> None:
    dense = torch.arange(rows * 4, dtype=torch.float32).view(rows, 4)
    save({"model": {NAME: dense}}, tmp_path / "0")
    held = parts((rows, 4), Shard(dim=0, parts=1, pieces=tp, size=rows, padded=padded))
    folder = through(tmp_path / "1", tmp_path / "0", held)
    catalogue = read_dcp(folder)
    require_whole(catalogue)
    entry = catalogue.tensors[NAME, PARAMETER]
    assert entry.shape == (rows, 4)
    # Padding is in no file.
    assert sum(stop - start for (start, stop), _ in (piece.box for piece in entry.pieces)) == rows
    found = by_rank(catalogue, held)
    assert [tuple(tensor.shape) for tensor in found] == [(each, 4)] * tp
    together = torch.cat(found)
    assert torch.equal(together[:rows], dense)
    assert not together[rows:].any()
    back = torch.empty(rows, 4)
    with Files() as files:
        fill(entry, whole((rows, 4)), back, files)
    assert torch.equal(back, dense)


def test_queries_keys_and_values_by_groups_of_heads() -> None:
    """4 heads of queries in 2 groups, 2 rows a head: q0 q1 k0 v0, q2 q3 k1 v1."""
    assert interleaved(("q", 0), ("k", 0), ("v", 0), heads=4, groups=2, size=2) == [
        Rows("q", 0, 4, 0), Rows("k", 4, 6, 0), Rows("v", 6, 8, 0),
        Rows("q", 8, 12, 4), Rows("k", 12, 14, 2), Rows("v", 14, 16, 2),
    ]  # fmt: skip
    # Of one tensor, all queries first: 2 heads of 3 rows.
    assert [row.first for row in interleaved(("a", 0), ("a", 6), ("a", 12), heads=2, groups=2, size=3)] == [
        0, 6, 12, 3, 9, 15
    ]  # fmt: skip
    assert one_after_another(("gate", 3), ("up", 3)) == [Rows("gate", 0, 3), Rows("up", 3, 6)]


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_padding_that_a_file_has(tmp_path: Path, form: str) -> None:
    """129 words saved as 136, under both names of the tied tensor or one."""
    graph, tensors = graph_of("gpt2"), labelled(graph_of("gpt2"))
    words = torch.cat([tensors["transformer.wte.weight"], torch.full((7, 32), 5.0, dtype=torch.float64)])
    saved = {**tensors, "transformer.wte.weight": words, "lm_head.weight": words.clone()}
    if form == "torch":
        save({"model": saved, "optim": {"state": {"lm_head.weight": {"exp_avg": words.clone()}}}}, tmp_path)
    else:
        save_file(saved, tmp_path / "model.safetensors")
    catalogue = without_padding(read_checkpoint(tmp_path), graph)
    assert catalogue.padded == dict.fromkeys(("transformer.wte.weight", "lm_head.weight"), (0, 136))
    require_model(catalogue, graph)
    require_whole(catalogue)
    for entry in (
        catalogue.tensors["transformer.wte.weight", PARAMETER],
        catalogue.tensors["lm_head.weight", PARAMETER],
    ):
        found = torch.empty(entry.shape, dtype=torch.float64)
        with Files() as files:
            fill(entry, whole(entry.shape), found, files)
        assert torch.equal(found, tensors["transformer.wte.weight"])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("transformer.wte.weight", (129, 40)), ("transformer.wpe.weight", (24, 32)),
        ("transformer.h.0.mlp.c_fc.bias", (136,)), ("transformer.wte.weight", (128, 32)),
        ("transformer.wte.weight", (32000, 32)),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_padding_is_another_model(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    graph = graph_of("gpt2")
    save({"model": {**labelled(graph), name: torch.zeros(shape)}}, tmp_path)
    with pytest.raises(InputError, match=f'is no checkpoint of "gpt2": "{name}" is '):
        require_model(without_padding(read_checkpoint(tmp_path), graph), graph)


LLAMA, GPT2 = "model.layers.2", "transformer.h.2"


@pytest.mark.parametrize(
    ("model", "name", "wanted"),
    [
        ("llama", "self_attention.linear_qkv.weight", [f"{LLAMA}.self_attn.{one}_proj.weight" for one in "qkv"]),
        ("llama", "mlp.linear_fc1.weight", [f"{LLAMA}.mlp.gate_proj.weight", f"{LLAMA}.mlp.up_proj.weight"]),
        ("llama", "mlp.linear_fc1.layer_norm_weight", [f"{LLAMA}.post_attention_layernorm.weight"]),
        ("llama", "input_layernorm.weight", [f"{LLAMA}.input_layernorm.weight"]),
        ("gpt2", "self_attention.linear_qkv.bias", [f"{GPT2}.attn.c_attn.bias"]),
        ("gpt2", "self_attention.linear_qkv.layer_norm_bias", [f"{GPT2}.ln_1.bias"]),
    ],
)
def test_names(model: str, name: str, wanted: list[str]) -> None:
    rows = names_of(graph_of(model)).inside(name, 2)
    assert list(dict.fromkeys(row.name for row in rows)) == wanted
    assert [row.start for row in rows] == [0, *(row.stop for row in rows[:-1])]


@pytest.mark.parametrize("name", ["mlp.experts.linear_fc1.weight", "self_attention.linear_q_down_proj.weight"])
def test_a_structure_that_is_not_known_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f'"{name}" has no known structure'):
        names_of(graph_of("llama")).inside(name, 0)


def as_megatron_saves(folder: Path, tensors: dict[str, Tensor], common: Any) -> None:
    save(tensors, folder)
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    torch.save(common, folder / "common.pt")


@pytest.mark.parametrize("master", ["fp32_param", "param"])
def test_master_weights_and_two_groups(tmp_path: Path, master: str) -> None:
    """An optimizer in an optimizer; the step in its groups, of which the first decays."""
    words, norm = torch.arange(129 * 32.0).view(129, 32), torch.arange(32.0)
    own = {"embedding.word_embeddings.weight": words, "decoder.final_layernorm.weight": norm}
    tensors = {
        **{name: tensor.bfloat16() for name, tensor in own.items()},
        **{f"optimizer.state.{master}.{name}": tensor for name, tensor in own.items()},
        **{f"optimizer.state.exp_avg.{name}": -tensor for name, tensor in own.items()},
    }
    shared = {"lr": 0.5, "step": 9, "lr_mult": 1.0, "max_lr": 1.0}
    groups = [{**shared, "weight_decay": 0.1, "wd_mult": 1.0}, {**shared, "weight_decay": 0.0, "wd_mult": 0.0}]
    as_megatron_saves(tmp_path, tensors, {"iteration": 9, "optimizer": {"optimizer": {"param_groups": groups}}})
    catalogue = read_checkpoint(tmp_path, graph=graph_of("gpt2"))
    names = "transformer.wte.weight", "transformer.ln_f.weight"
    assert set(catalogue.tensors) == {(name, state) for name in names for state in (PARAMETER, "exp_avg")}
    for name, tensor in zip(names, own.values(), strict=True):
        for state, wanted in ((PARAMETER, tensor), ("exp_avg", -tensor)):
            entry = catalogue.tensors[name, state]
            found = torch.empty(entry.shape)
            with Files() as files:
                fill(entry, whole(entry.shape), found, files)
            assert entry.dtype == "float32"
            assert torch.equal(found, wanted)
    assert [(group.names, group.options) for group in catalogue.groups] == [
        (names[:1], {"lr": 0.5, "weight_decay": 0.1}), (names[1:], {"lr": 0.5, "weight_decay": 0.0})
    ]  # fmt: skip
    assert catalogue.scalars == {(name, "step"): 9 for name in names}
    assert catalogue.rest["steps"] == 9


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param", "by buckets"),
        ("chained_0.optimizer.state.exp_avg.decoder.final_layernorm.weight", "by buckets"),
        ("decoder.layers.mlp.router.weight", '"mlp.router.weight" has no known structure'),
        ("decoder.layers.self_attention.linear_qkv.weight", "has 12 rows, the model's own have 96"),
    ],
)
def test_what_can_not_be_read_of_megatron_is_named(tmp_path: Path, key: str, words: str) -> None:
    tensors = {"embedding.word_embeddings.weight": torch.zeros(129, 32), key: torch.zeros(4, 12, 32)}
    as_megatron_saves(tmp_path, tensors, {})
    with pytest.raises(InputError, match=words):
        read_checkpoint(tmp_path, graph=graph_of("gpt2"))


def test_megatron_of_a_model_that_is_not_its_own(tmp_path: Path) -> None:
    """Under the model's own names, the vocabulary padded."""
    graph, tensors = graph_of("llama"), labelled(graph_of("llama"))
    padded = {
        name: torch.cat([tensor, torch.ones(3, 32, dtype=torch.float64)]) if len(tensor) == 129 else tensor
        for name, tensor in tensors.items()
    }
    as_megatron_saves(tmp_path, padded, {"iteration": 3})
    catalogue = without_padding(read_checkpoint(tmp_path, graph=graph), graph)
    require_model(catalogue, graph)
    assert catalogue.padded == dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (0, 132))
    for name, tensor in tensors.items():
        found = torch.empty(tensor.shape, dtype=torch.float64)
        with Files() as files:
            fill(catalogue.tensors[name, PARAMETER], whole(tensor.shape), found, files)
        assert torch.equal(found, tensor), name
