"""Attention of the recipes that are written as plain modules."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    """Attention on [b, positions, width]: of all positions to all, or ``causal``, to themselves and those before."""

    def __init__(self, width: int, heads: int, *, causal: bool = False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, value: Tensor) -> Tensor:
        query, key, value = (
            layer(value).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        found = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(found.transpose(1, 2).flatten(2))
