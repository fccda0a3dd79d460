"""Real images that need no download: the 1,797 handwritten digits that come with scikit-learn, 8 × 8 in 17 greys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate


class Digits:
    """Random digits, enlarged to ``side`` pixels, drawn by (seed, step): the same on every rank, however divided."""

    def __init__(self, side: int, dtype: torch.dtype, seed: int):
        from sklearn.datasets import load_digits

        found = load_digits()
        # Greys are 0 to 16; a model expects values around 0.
        self.greys = torch.tensor(found.images, dtype=torch.float32) / 8 - 1
        self.labels = torch.tensor(found.target, dtype=torch.long)
        self.side = side
        self.dtype = dtype
        self.seed = seed

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """The global batch of a step: ``pixel_values`` [count, 3, side, side] and ``labels`` int64 [count], 0 to 9."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        picked = torch.randint(0, len(self.labels), (count,), generator=generator)
        # Enlarged when drawn: all of them at once would be 50 GB at the largest size.
        large = interpolate(self.greys[picked].unsqueeze(1), size=(self.side, self.side), mode="bilinear")
        return {"pixel_values": large.to(self.dtype).repeat(1, 3, 1, 1), "labels": self.labels[picked]}
