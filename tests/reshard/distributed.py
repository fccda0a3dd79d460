"""Checkpoints in torch's distributed format for tests: saved by torch itself, written for plans, read back by torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp

from partita.adapters.checkpoint.catalogue import Catalogue
from partita.adapters.checkpoint.target import Target, require_model, target
from partita.adapters.checkpoint.write_dcp import dcp_outputs
from partita.graph import Graph
from partita.plugins.capture_huggingface import capture_config
from tests.runtime.programs import Layout, plan

# Vocabularies that no tp but 1 divides.
CONFIGS: Mapping[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 129, "n_positions": 16,
             "n_embd": 32, "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 129, "hidden_size": 32,
              "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
              "max_position_embeddings": 16},
}  # fmt: skip
STATES = ("exp_avg", "exp_avg_sq")
OPTIONS = {"lr": 0.1, "betas": (0.9, 0.99)}


@cache
def graph_of(model: str) -> Graph:
    return capture_config(CONFIGS[model], samples=2, seq=16, dtype="float32", name=model)


def labelled(graph: Graph) -> dict[str, Tensor]:
    """A value for each parameter; every element of all of them is another one."""
    found, first = {}, 0
    for tensor in graph.tensors:
        if tensor.role == "parameter":
            count = int(torch.Size(tensor.shape).numel())
            found[tensor.name] = torch.arange(first, first + count, dtype=torch.float64).view(tensor.shape)
            first += count
    return found


def nested(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Parameters and an Adam's state as a user of torch saves them."""
    state = {n: {"exp_avg": t + 0.25, "exp_avg_sq": -t, "step": torch.tensor(7.0)} for n, t in tensors.items()}
    groups = [{**OPTIONS, "params": list(tensors)}]
    return {"model": dict(tensors), "optimizer": {"state": state, "param_groups": groups}}


def save(state: Any, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(folder))


def load(state: Any, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=str(folder))
    return state


def for_layout(graph: Graph, layout: Layout) -> Target:
    return target(plan(graph, layout), graph)


def write(catalogue: Catalogue, goal: Target, folder: Path) -> Path:
    require_model(catalogue, goal.graph)
    folder.mkdir()
    # As two runs, of which the second begins where the first was killed: it knows the files alone.
    for turn in (0, 1):
        for index, output in enumerate(dcp_outputs(catalogue, goal)):
            if (index > 1) == turn:
                output.write(folder / output.name)
    return folder
