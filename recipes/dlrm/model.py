"""The model: a branch for the numbers and one for each feature, their interactions, and dense layers on these.

In DLRM (Naumov et al., 2019, section 2) the numbers alone have dense layers before the interactions; here every feature
has, as in the model that GraphPipe trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from partita.recipes.dense import DenseBranches, dense_layers
from partita.recipes.dlrm.sizes import SIZES, Size


class Result(NamedTuple):
    """What the model returns."""

    loss: Tensor


class Interactions(nn.Module):
    """The first branch's values and the products of all pairs of branches: from [b, width] each to [b, width + n²]."""

    def forward(self, *branches: Tensor) -> Tensor:
        vectors = torch.stack(branches, dim=1)
        products = vectors @ vectors.transpose(1, 2)
        # Sums over so many values, made about as large as the values are.
        return torch.cat([branches[0], products.flatten(1) / vectors.shape[2] ** 0.5], dim=-1)


class Dlrm(DenseBranches):
    """``numbers`` [b, numbers], ``features`` int64 [b, features] rows of the tables, ``clicks`` [b] 0 or 1."""

    def __init__(self, size: Size):
        tables = [nn.Embedding(size.rows, size.embedding) for _ in range(size.features)]
        branches = [dense_layers(size.embedding, size.width, size.layers, table) for table in tables]
        top = dense_layers(size.width + size.branches**2, size.width, size.top, Interactions())
        super().__init__([dense_layers(size.numbers, size.width, size.layers), *branches], top, size.width)

    def forward(self, numbers: Tensor, features: Tensor, clicks: Tensor) -> Result:
        answers = self.answers(numbers, *features.unbind(1))
        return Result(binary_cross_entropy_with_logits(answers, clicks))


def factory(name: str) -> Callable[[], nn.Module]:
    """What builds the model of that name."""
    return lambda: Dlrm(SIZES[name])


def example(name: str, dtype: torch.dtype) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of the shape that training uses, for any number of samples."""
    size = SIZES[name]
    return lambda samples: {
        "numbers": torch.zeros(samples, size.numbers, dtype=dtype),
        "features": torch.zeros(samples, size.features, dtype=torch.long),
        "clicks": torch.zeros(samples, dtype=dtype),
    }
