"""Samples of a text: windows of byte-level tokens."""

from __future__ import annotations

import torch
from torch import Tensor


class Samples:
    """Random windows of ``seq`` tokens, drawn by (seed, step): the same on every rank, however they are divided."""

    def __init__(self, text: bytes, seq: int, seed: int):
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.seq = seq
        self.seed = seed

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """The global batch of a step: ``input_ids`` and ``labels``, both int64 [count, seq]."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(0, len(self.tokens) - self.seq, (count,), generator=generator)
        ids = torch.stack([self.tokens[start : start + self.seq] for start in starts.tolist()]).long()
        return {"input_ids": ids, "labels": ids.clone()}
