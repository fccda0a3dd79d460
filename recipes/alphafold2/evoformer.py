"""One block of the Evoformer stack (AlphaFold2, supplement, algorithm 6) and what it does beside attention.

Dropout is left out, and so are the extra MSA stack, templates and the structure module: they are small beside the
stack. Initial weights are torch's, not the paper's: that one starts with zeros in the last layer of every branch, and
a comparison of gradients would compare zeros.
"""

from __future__ import annotations

from torch import Tensor, nn

from partita.recipes.alphafold2.attention import ColumnAttention, RowAttention, TriangleAttention
from partita.recipes.alphafold2.sizes import Size


class Transition(nn.Module):
    """Algorithms 9 and 15: two linear layers, four times as wide in between."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, value: Tensor) -> Tensor:
        return self.narrow(self.widen(self.norm(value)).relu())


class OuterProductMean(nn.Module):
    """Algorithm 10: o_ij is the mean over sequences s of the outer products of a_si and b_sj."""

    def __init__(self, msa_width: int, pair_width: int, outer: int):
        super().__init__()
        self.norm = nn.LayerNorm(msa_width)
        self.left = nn.Linear(msa_width, outer)
        self.right = nn.Linear(msa_width, outer)
        self.out = nn.Linear(outer * outer, pair_width)

    def forward(self, msa: Tensor) -> Tensor:
        _, sequences, residues, _ = msa.shape
        msa = self.norm(msa)
        # Channels are the major factor where they share a dim with residues: so can they be divided.
        left = self.left(msa).permute(0, 3, 2, 1).flatten(1, 2)
        right = self.right(msa).permute(0, 1, 3, 2).flatten(2, 3)
        product = (left @ right).unflatten(2, (-1, residues)).unflatten(1, (-1, residues))
        return self.out(product.permute(0, 2, 4, 1, 3).flatten(3) / sequences)


class TriangleMultiplication(nn.Module):
    """Algorithms 11 and 12: the edge ij from the edges ik and jk (outgoing), or from ki and kj (incoming)."""

    def __init__(self, width: int, *, outgoing: bool):
        super().__init__()
        self.outgoing = outgoing
        self.norm = nn.LayerNorm(width)
        self.left, self.left_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.right, self.right_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.out_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, pair: Tensor) -> Tensor:
        pair = self.norm(pair)
        left = self.left_gate(pair).sigmoid() * self.left(pair)
        right = self.right_gate(pair).sigmoid() * self.right(pair)
        if self.outgoing:
            product = left.permute(0, 3, 1, 2) @ right.permute(0, 3, 2, 1)
        else:
            product = left.permute(0, 3, 2, 1) @ right.permute(0, 3, 1, 2)
        return self.gate(pair).sigmoid() * self.out(self.out_norm(product.permute(0, 2, 3, 1)))


class Evoformer(nn.Module):
    """Both tracks through one block: msa [b, sequences, residues, c_m] and pair [b, residues, residues, c_z]."""

    def __init__(self, size: Size):
        super().__init__()
        msa_width, pair_width = size.msa_width, size.pair_width
        self.row = RowAttention(msa_width, pair_width, size.msa_heads)
        self.column = ColumnAttention(msa_width, size.msa_heads)
        self.msa_transition = Transition(msa_width)
        self.outer = OuterProductMean(msa_width, pair_width, size.outer)
        self.outgoing = TriangleMultiplication(pair_width, outgoing=True)
        self.incoming = TriangleMultiplication(pair_width, outgoing=False)
        self.starting = TriangleAttention(pair_width, size.pair_heads, starting=True)
        self.ending = TriangleAttention(pair_width, size.pair_heads, starting=False)
        self.pair_transition = Transition(pair_width)

    def forward(self, msa: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        msa = msa + self.row(msa, pair)
        msa = msa + self.column(msa)
        msa = msa + self.msa_transition(msa)
        pair = pair + self.outer(msa)
        pair = pair + self.outgoing(pair)
        pair = pair + self.incoming(pair)
        pair = pair + self.starting(pair)
        pair = pair + self.ending(pair)
        return msa, pair + self.pair_transition(pair)
