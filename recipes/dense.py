"""Branches of dense layers, joined and followed by more of them: what the recipes dlrm and uno have in common."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Dense(nn.Module):
    """A linear layer and ReLU, to [b, width]. ``entry`` comes before it and makes [b, inputs] of what is given."""

    def __init__(self, inputs: int, width: int, entry: nn.Module | None = None):
        super().__init__()
        self.entry = entry
        self.linear = nn.Linear(inputs, width)

    def forward(self, *values: Tensor) -> Tensor:
        value = values[0] if self.entry is None else self.entry(*values)
        return self.linear(value).relu()


class Side(nn.Module):
    """Its values side by side."""

    def forward(self, *values: Tensor) -> Tensor:
        return torch.cat(values, dim=-1)


def dense_layers(inputs: int, width: int, layers: int, entry: nn.Module | None = None) -> nn.ModuleList:
    """So many dense layers; the first has the entry."""
    first = Dense(inputs, width, entry)
    return nn.ModuleList([first, *(Dense(width, width) for _ in range(layers - 1))])


class DenseBranches(nn.Module):
    """A branch of dense layers for each input, more of them on what joins the branches, and a number for each sample.

    The first layer of each branch, and the first after the join, has what comes before it as its entry: so the model is
    its layers and a head, and nothing lies between the branches.
    """

    def __init__(self, branches: Sequence[nn.ModuleList], top: nn.ModuleList, width: int):
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.top = top
        self.head = nn.Linear(width, 1)

    def answers(self, *given: Tensor) -> Tensor:
        """[b], of one value for each branch."""
        made = []
        for value, layers in zip(given, self.branches, strict=True):
            for layer in layers:
                value = layer(value)
            made.append(value)
        first, *others = self.top
        value = first(*made)
        for layer in others:
            value = layer(value)
        return self.head(value).squeeze(-1)
