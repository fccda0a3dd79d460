"""The model: a branch of dense layers for each feature, joined by concatenation, and dense layers on that.

Uno itself has the same weights for both drugs and no layers for doses; GraphPipe's seven branches have their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from partita.recipes.dense import DenseBranches, Side, dense_layers
from partita.recipes.uno.sizes import SIZES, Size


class Result(NamedTuple):
    """What the model returns."""

    loss: Tensor


class Uno(DenseBranches):
    """Each feature is [b, numbers]; ``growth`` [b] is what is to be found."""

    def __init__(self, size: Size):
        branches = [dense_layers(numbers, size.width, size.layers) for numbers in size.inputs.values()]
        super().__init__(branches, dense_layers(len(branches) * size.width, size.width, size.top, Side()), size.width)

    def forward(
        self, cell: Tensor, dose1: Tensor, dose2: Tensor, descriptors1: Tensor, fingerprints1: Tensor,
        descriptors2: Tensor, fingerprints2: Tensor, growth: Tensor,
    ) -> Result:  # fmt: skip
        answers = self.answers(cell, dose1, dose2, descriptors1, fingerprints1, descriptors2, fingerprints2)
        return Result(mse_loss(answers, growth))


def factory(name: str) -> Callable[[], nn.Module]:
    """What builds the model of that name."""
    return lambda: Uno(SIZES[name])


def example(name: str, dtype: torch.dtype) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of the shape that training uses, for any number of samples."""
    shapes = {feature: (numbers,) for feature, numbers in SIZES[name].inputs.items()} | {"growth": ()}
    return lambda samples: {feature: torch.zeros(samples, *shape, dtype=dtype) for feature, shape in shapes.items()}
