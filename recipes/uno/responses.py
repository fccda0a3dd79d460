"""Samples made up by rule, so that nothing needs a download: growth to which each feature adds as much.

Features are noise of variance 1, growth a weighted sum of all of them, of variance 1. So who knows m of n features, and
knows them for certain, has a mean squared error of (n − m) / n, and nobody has less without the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partita.recipes.uno.sizes import Size


class Responses:
    """Random samples, drawn by (seed, step): the same on every rank, however they are divided."""

    def __init__(self, size: Size, dtype: torch.dtype, seed: int):
        self.dtype = dtype
        self.seed = seed
        # The rule is the same whatever the seed. By feature [numbers].
        generator = torch.Generator().manual_seed(0)
        drawn = {name: torch.randn(numbers, generator=generator) for name, numbers in size.inputs.items()}
        self.weights = {name: weights / weights.norm() / len(drawn) ** 0.5 for name, weights in drawn.items()}

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """The global batch of a step: each feature [count, numbers], and ``growth`` [count]."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        found = {name: torch.randn(count, len(weights), generator=generator) for name, weights in self.weights.items()}
        found["growth"] = torch.stack([found[name] @ weights for name, weights in self.weights.items()]).sum(0)
        return {name: value.to(self.dtype) for name, value in found.items()}
