"""Gated attention on the two tracks (AlphaFold2, supplement, algorithms 7, 8, 13 and 14).

An MSA is [samples, sequences, residues, channels], a pair representation [samples, residues, residues, channels]: to
attention both are rows of columns, and the columns of a row attend to each other.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class GatedAttention(nn.Module):
    """Attention among the columns of each row of [b, rows, columns, width], its output gated by its input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        """``bias`` [b, 1, heads, columns, columns] is added to the logits of every row."""
        query, key, value = (
            layer(rows).unflatten(-1, (self.heads, -1)).transpose(2, 3) for layer in (self.query, self.key, self.value)
        )
        found = scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.out(self.gate(rows).sigmoid() * found.transpose(2, 3).flatten(3))


class PairBias(nn.Module):
    """What each head of an attention adds to its logits, from a normalised pair representation."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.linear = nn.Linear(width, heads, bias=False)

    def forward(self, pair: Tensor) -> Tensor:
        return self.linear(pair).permute(0, 3, 1, 2).unsqueeze(1)


class RowAttention(nn.Module):
    """Algorithm 7: the residues of a sequence attend to each other, biased by the pair representation."""

    def __init__(self, width: int, pair_width: int, heads: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.pair_norm = nn.LayerNorm(pair_width)
        self.bias = PairBias(pair_width, heads)
        self.attention = GatedAttention(width, heads)

    def forward(self, msa: Tensor, pair: Tensor) -> Tensor:
        return self.attention(self.norm(msa), self.bias(self.pair_norm(pair)))


class ColumnAttention(nn.Module):
    """Algorithm 8: the sequences attend to each other at each residue."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = GatedAttention(width, heads)

    def forward(self, msa: Tensor) -> Tensor:
        return self.attention(self.norm(msa).transpose(1, 2)).transpose(1, 2)


class TriangleAttention(nn.Module):
    """Algorithms 13 and 14: edges attend to each other that start at one node, or end there; the third edge of the
    triangle biases them.
    """

    def __init__(self, width: int, heads: int, *, starting: bool):
        super().__init__()
        self.starting = starting
        self.norm = nn.LayerNorm(width)
        self.bias = PairBias(width, heads)
        self.attention = GatedAttention(width, heads)

    def forward(self, pair: Tensor) -> Tensor:
        if self.starting:
            pair = self.norm(pair)
            return self.attention(pair, self.bias(pair))
        # Ending at a node: the same on the transposed matrix, whose bias b_ki is then the transposed one.
        pair = self.norm(pair).transpose(1, 2)
        return self.attention(pair, self.bias(pair)).transpose(1, 2)
