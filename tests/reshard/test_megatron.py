"""Megatron's distributed checkpoints, saved by Megatron-core of its own GPT model, go on under plans of Partita."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from partita.adapters.checkpoint.convert import convert
from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.prepare import lower_model, prepare, realiser
from partita.adapters.torch.resume import load_checkpoint
from partita.errors import InputError
from partita.plan import load_plan, save_plan
from partita.plugins.capture_huggingface import capture_config
from tests.ranks.pool import Pool
from tests.reshard import megatron_gpt
from tests.reshard.distributed import CONFIGS, load
from tests.reshard.megatron_gpt import SAMPLES, save, tokens, train_and_save
from tests.runtime.models import SEQ
from tests.runtime.programs import Layout, plan

pytestmark = pytest.mark.slow


def plain(config: dict[str, Any]) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if config["model_type"] == "llama":
        return LlamaForCausalLM(LlamaConfig(**config, use_cache=False))
    return GPT2LMHeadModel(GPT2Config(**config, use_cache=False, bos_token_id=None, eos_token_id=None))


def resume(config: dict[str, Any], path: str, folder: str) -> list[float]:
    """Losses of steps 2 and 3 under a plan, from a checkpoint."""
    found = load_plan(path)

    def example(samples: int) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(samples, SEQ, dtype=torch.long) for name in ("input_ids", "labels")}

    lowered = lower_model(found, lambda: plain(config), example)
    prepared = prepare(lowered, seed=3, device=torch.device("cpu"), realise=realiser(lowered, found.target))
    made = optimizers(prepared.stages, lambda parameters: torch.optim.Adam(parameters.values(), lr=1.0))
    engine = TorchEngine(prepared.stages, prepared.groups, made)
    load_checkpoint(prepared.runtime, engine, folder)
    losses = []
    for step in (2, 3):
        ids = tokens(step, config["vocab_size"]).split(lowered.program.shares[0].samples)
        losses.append(prepared.runtime.step(iter({"input_ids": one, "labels": one} for one in ids), engine))
    return losses


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_losses_continue(pool: Pool, tmp_path: Path, model: str) -> None:
    """tp 4 in Megatron, tp 2 in two stages here. No padding: Megatron's loss counts padded words, which the model has
    not."""
    config = {**CONFIGS[model], "vocab_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    wanted = pool.run(train_and_save, 4, config, 128, str(tmp_path / "megatron"), timeout=200)[0]
    graph = capture_config(config, samples=SAMPLES // 2, seq=SEQ, dtype="float32", name=model)
    goal = replace(plan(graph, Layout(pp=2, tp=2)), target="megatron")
    save_plan(goal, tmp_path / "plan.json")
    result = convert(
        tmp_path / "megatron", str(tmp_path / "plan.json"), tmp_path / "out", None, str(tmp_path / "config.json")
    )
    assert result.catalogue.states == ("exp_avg", "exp_avg_sq")
    assert result.catalogue.rest["steps"] == 2
    for losses in pool.run(resume, 4, config, str(tmp_path / "plan.json"), str(tmp_path / "out"), timeout=200):
        assert losses == pytest.approx(wanted, abs=1e-5)
    assert wanted[0] != wanted[1]
    # And back, for Megatron itself on other numbers of ranks.
    convert(tmp_path / "out", "megatron", tmp_path / "back", None, str(tmp_path / "config.json"))
    for losses in pool.run(megatron_gpt.resume, 2, config, 128, str(tmp_path / "back"), timeout=200):
        assert losses == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_fused_and_padded_tensors_are_the_models_own(pool: Pool, tmp_path: Path, model: str) -> None:
    """129 words that Megatron pads to 160, on two ranks; what it saved, by torch's own reader, and by formula."""
    config, layers = CONFIGS[model], 4
    (tmp_path / "config.json").write_text(json.dumps(config))
    pool.run(save, 2, config, 160, str(tmp_path / "megatron"), timeout=200)
    result = convert(tmp_path / "megatron", "safetensors", tmp_path / "out", None, str(tmp_path / "config.json"))
    found = load_file(tmp_path / "out" / "model.safetensors")
    rows = {"qkv": 64 if model == "llama" else 96, "fc1": 128}
    megatron = {
        "embedding.word_embeddings.weight": torch.zeros(160, 32),
        "decoder.layers.self_attention.linear_qkv.weight": torch.zeros(layers, rows["qkv"], 32),
        "decoder.layers.mlp.linear_fc1.weight": torch.zeros(layers, rows["fc1"], 32),
    }
    words, qkv, up = load(megatron, tmp_path / "megatron").values()
    padded = {"model.embed_tokens.weight", "lm_head.weight"} if model == "llama" else {"transformer.wte.weight"}
    assert result.catalogue.padded == dict.fromkeys(padded, (0, 160))
    assert all(tuple(found[name].shape) == (129, 32) for name in padded)
    for layer in range(layers):
        if model == "llama":
            at = f"model.layers.{layer}"
            # 4 groups of 2 heads of queries, one of keys and one of values, of 4 rows each.
            groups = qkv[layer].view(4, 4, 4, 32)
            assert torch.equal(found[f"{at}.self_attn.q_proj.weight"], groups[:, :2].reshape(32, 32))
            assert torch.equal(found[f"{at}.self_attn.k_proj.weight"], groups[:, 2].reshape(16, 32))
            assert torch.equal(found[f"{at}.self_attn.v_proj.weight"], groups[:, 3].reshape(16, 32))
            gate, upper = up[layer].chunk(2)
            assert torch.equal(found[f"{at}.mlp.gate_proj.weight"], gate)
            assert torch.equal(found[f"{at}.mlp.up_proj.weight"], upper)
            assert torch.equal(found["model.embed_tokens.weight"], words[:129])
        else:
            at = f"transformer.h.{layer}"
            # 4 heads of a query, a key and a value of 8 rows; GPT-2 has all queries first, and columns for rows.
            heads = qkv[layer].view(4, 3, 8, 32).transpose(0, 1).reshape(96, 32)
            assert torch.equal(found[f"{at}.attn.c_attn.weight"], heads.t())
            assert torch.equal(found[f"{at}.mlp.c_fc.weight"], up[layer].t())
            assert torch.equal(found["transformer.wte.weight"], words[:129])
    # Megatron loads 129 words into its 160.
    convert(tmp_path / "out", "megatron", tmp_path / "back", None, str(tmp_path / "config.json"))
    loaded = torch.cat(pool.run(megatron_gpt.words_of, 2, config, 160, str(tmp_path / "back"), timeout=200))
    assert loaded.shape == (160, 32)
    assert torch.equal(loaded[:129], words[:129])


def test_another_model_and_none(tmp_path: Path, pool: Pool) -> None:
    pool.run(save, 2, CONFIGS["llama"], 160, str(tmp_path / "megatron"), timeout=200)
    with pytest.raises(InputError, match="--model MODEL says"):
        convert(tmp_path / "megatron", "safetensors", tmp_path / "out", None, None)
    wider = {**CONFIGS["llama"], "intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(wider))
    with pytest.raises(
        InputError, match=r'"decoder\.layers\.mlp\.linear_fc1\.weight" has 128 rows, the model\'s own have 192'
    ):
        convert(tmp_path / "megatron", "safetensors", tmp_path / "out", None, str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt2"]))
    with pytest.raises(InputError, match="megatron"):
        convert(tmp_path / "megatron", "safetensors", tmp_path / "out", None, str(tmp_path / "config.json"))
    assert not (tmp_path / "out").exists()
