"""Real images that need no download: the 1,797 handwritten digits that scikit-learn ships (8 × 8, 16 grey levels), enlarged."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class Digits:
    """Batches of digits, drawn by (seed, step): every rank and every way of cutting sees the same ones."""

    def __init__(self, image: int, seed: int):
        from sklearn.datasets import load_digits

        found = load_digits()
        grey = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8.0 - 1.0
        self.pixels = functional.interpolate(grey, size=(image, image), mode="bilinear").expand(-1, 3, -1, -1)
        self.labels = torch.tensor(found.target, dtype=torch.long)
        self.seed = seed

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """The global batch of a step: pixels [count, 3, image, image], labels [count]."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        picked = torch.randint(0, len(self.labels), (count,), generator=generator)
        return {"pixel_values": self.pixels[picked].contiguous(), "labels": self.labels[picked]}
