"""A group of which only one device is there: what others would send is taken from its own tensor.

A block's piece under tensor parallelism then runs by itself, with the right shapes and without communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Alone:
    """``adapters.torch.wires.Group`` for measuring."""

    size: int
    rank: int = 0

    def sum(self, tensor: Tensor) -> None:
        """Nothing is added."""

    def largest(self, tensor: Tensor) -> None:
        """It is the largest."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor] * self.size

    def scatter_sum(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[self.rank].clone()

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return list(parts)

    def objects(self, mine: Any) -> list[Any]:
        return [mine] * self.size
