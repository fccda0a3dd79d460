"""Models by the name that the command line takes: ``tests.reshard.models:gpt2``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.runtime.models import MODELS


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    return _with_example("gpt2")


def shifted() -> tuple[nn.Module, dict[str, Any]]:
    return _with_example("gpt2 shifted")


def llama() -> tuple[nn.Module, dict[str, Any]]:
    return _with_example("llama")


def _with_example(name: str) -> tuple[nn.Module, dict[str, Any]]:
    kind = MODELS[name]
    return kind.build(), dict(kind.batch(kind.samples, torch.Generator(), False))


def words() -> tuple[nn.Module, dict[str, Any]]:
    """The model of the loops, without dropout."""
    from tests.failures.train import SAMPLES, Model

    model = Model()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, model.example_inputs(SAMPLES)
