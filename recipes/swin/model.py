"""The model: HuggingFace's Swin with a classifier. Nothing in it knows of stages or devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from partita.recipes.swin.sizes import SIZES, config


def factory(name: str) -> Callable[[], nn.Module]:
    """What builds the model of that name."""
    from transformers import SwinConfig, SwinForImageClassification

    settings = SwinConfig(**config(name))
    return lambda: SwinForImageClassification(settings)


def example(name: str, dtype: torch.dtype) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of the shape that training uses, for any number of samples."""
    side = SIZES[name].image
    return lambda samples: {
        "pixel_values": torch.zeros(samples, 3, side, side, dtype=dtype),
        "labels": torch.zeros(samples, dtype=torch.long),
    }
