"""The seven families captured twice: from the values of a configuration, and by exporting the model made from them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from partita.graph import Graph
from partita.plugins.capture_huggingface import FAMILIES, capture_config
from partita.plugins.capture_torch import capture_module

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
SAMPLES, SEQ = 2, 16
# What a file says, changed: dropout and tied embeddings where the small file has neither.
CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-dropout": (
        "gpt2-tiny", {"resid_pdrop": 0.1, "embd_pdrop": 0.2, "attn_pdrop": 0.3, "tie_word_embeddings": True}
    ),
    "gpt-neox-parallel": ("gpt-neox-tiny", {"use_parallel_residual": True, "attention_bias": True}),
    "llama-untied": ("llama-tiny", {"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}),
    "bert-tied": ("bert-tiny", {"tie_word_embeddings": True}),
    "t5-scaled": ("t5-gated-tiny", {"tie_word_embeddings": True, "feed_forward_proj": "relu", "dropout_rate": 0.0}),
}  # fmt: skip
# bert-tiny itself has a bias that its forward pass doesn't read, which is refused: a test of its own.
ONE_OF_EACH = (
    "gpt2-dropout", "gpt-neox-tiny", "llama-tiny", "bert-tied", "t5-gated-tiny", "vit-tiny", "swin-odd"
)  # fmt: skip
NAMES = (*ONE_OF_EACH, "gpt2-tiny", "gpt-neox-parallel", "llama-untied", "t5-scaled")


def values(name: str) -> dict[str, Any]:
    """The configuration of that name."""
    file, changes = CHANGED.get(name, (name, {}))
    return {**json.loads((CONFIGS / f"{file}.json").read_text()), **changes}


def build(name: str) -> torch.nn.Module:
    """The model that transformers builds."""
    transformers.logging.set_verbosity_error()
    found = values(name)
    model_class = getattr(transformers, FAMILIES[found["model_type"]].classes[0])
    return model_class(model_class.config_class.from_dict(found))


@cache
def from_config(name: str) -> Graph:
    found = values(name)
    return capture_config(found, samples=SAMPLES, seq=None if "image_size" in found else SEQ, name=name)


@cache
def exported(name: str) -> Graph:
    graph = from_config(name)
    inputs = {
        key: torch.zeros(graph.tensor[key].shape, dtype=getattr(torch, graph.tensor[key].dtype)) for key in graph.inputs
    }
    return capture_module(lambda: build(name), inputs, name=name).graph
