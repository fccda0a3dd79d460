"""Samples made up by rule, so that nothing needs a download: clicks that all features decide together.

Every number and every row of every table has a weight. A sample's are added up, and it is clicked where the sum is
positive. Each branch has about the same share of the sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partita.recipes.dlrm.sizes import Size


class Clicks:
    """Random samples, drawn by (seed, step): the same on every rank, however they are divided."""

    def __init__(self, size: Size, dtype: torch.dtype, seed: int):
        self.size = size
        self.dtype = dtype
        self.seed = seed
        # The rule is the same whatever the seed. [numbers], of length 1; [features, rows], of variance 1.
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(size.numbers, generator=generator)
        self.of_numbers = weights / weights.norm()
        self.of_rows = torch.randn(size.features, size.rows, generator=generator)

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """The global batch of a step: ``numbers`` [count, numbers], ``features`` int64 [count, features], ``clicks``
        [count].
        """
        size, generator = self.size, torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        numbers = torch.randn(count, size.numbers, generator=generator)
        features = torch.randint(size.rows, (count, size.features), generator=generator)
        total = numbers @ self.of_numbers + self.of_rows.t().gather(0, features).sum(1)
        return {"numbers": numbers.to(self.dtype), "features": features, "clicks": (total > 0).to(self.dtype)}
