"""Samples of a text: byte-level tokens, and which rank trains on which."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Samples:
    """Random windows of ``seq`` tokens, drawn by (seed, step): the same on every rank, however they are divided."""

    def __init__(self, text: bytes, seq: int, seed: int):
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.seq = seq
        self.seed = seed

    def batch(self, step: int, count: int) -> Tensor:
        """The global batch of a step: int64 [count, seq]."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(0, len(self.tokens) - self.seq, (count,), generator=generator)
        return torch.stack([self.tokens[start : start + self.seq] for start in starts.tolist()]).long()

    def micro_batches(
        self, step: int, *, copy: int, copies: int, samples: int, count: int
    ) -> Iterator[dict[str, Tensor]]:
        """What data-parallel copy ``copy`` of ``copies`` trains on: ``count`` micro-batches of ``samples`` samples."""
        batch = self.batch(step, copies * samples * count)
        mine = batch[copy * samples * count :][: samples * count]
        for part in mine.split(samples):
            yield {"input_ids": part, "labels": part.clone()}
