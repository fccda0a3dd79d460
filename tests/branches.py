"""A model with branches, for tests of stages that form a graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """Three towers of so many layers on one input, and a head that reads all of them joined."""

    def __init__(self, layer: Callable[[], nn.Module], layers: int, head: nn.Module) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.ModuleList(layer() for _ in range(layers)) for _ in range(3))
        self.head = head

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made = []
        for tower in self.towers:
            found = x
            for layer in tower:
                found = layer(found)
            made.append(found)
        return (self.head(torch.cat(made, dim=-1)) - y).square().mean()
