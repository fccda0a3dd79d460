"""The model: embeddings, the Evoformer stack run several times over its own result (recycling), and two losses.

Recycling is written out: every pass is a module of its own whose parameters are those of the first, so that a plan can
place each block of each pass. No gradient flows from one pass into the one before it (AlphaFold2, supplement, 1.10):
only the last is trained, and what it starts from is detached.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from partita.recipes.alphafold2.evoformer import Evoformer
from partita.recipes.alphafold2.sizes import SIZES, Size

# 20 amino acids, an unknown one, a gap, and what hides a masked one.
GAP, MASK, LETTERS = 21, 22, 23
IGNORED = -100


class Result(NamedTuple):
    """What the model returns."""

    loss: Tensor


class Embedding(nn.Module):
    """Algorithms 3 and 4: both tracks from the letters of an alignment, whose first row is the protein itself.

    A linear layer on a one-hot vector is a table that is looked up.
    """

    def __init__(self, size: Size):
        super().__init__()
        self.reach = size.reach
        self.letter = nn.Embedding(LETTERS, size.msa_width)
        self.residue = nn.Embedding(LETTERS, size.msa_width)
        self.left = nn.Embedding(LETTERS, size.pair_width)
        self.right = nn.Embedding(LETTERS, size.pair_width)
        self.offset = nn.Embedding(2 * size.reach + 1, size.pair_width)

    def forward(self, letters: Tensor) -> tuple[Tensor, Tensor]:
        protein = letters[:, 0]
        place = torch.arange(letters.shape[2], device=letters.device)
        offset = (place.unsqueeze(1) - place).clamp(-self.reach, self.reach) + self.reach
        msa = self.letter(letters) + self.residue(protein).unsqueeze(1)
        pair = self.left(protein).unsqueeze(2) + self.right(protein).unsqueeze(1) + self.offset(offset)
        return msa, pair


class Recycle(nn.Module):
    """Algorithm 32 without a structure: the pass before adds its first row and its pairs, normalised."""

    def __init__(self, size: Size):
        super().__init__()
        self.row_norm = nn.LayerNorm(size.msa_width)
        self.pair_norm = nn.LayerNorm(size.pair_width)

    def forward(self, msa: Tensor, pair: Tensor, earlier_msa: Tensor, earlier_pair: Tensor) -> tuple[Tensor, Tensor]:
        first = msa[:, :1] + self.row_norm(earlier_msa[:, :1])
        return torch.cat([first, msa[:, 1:]], dim=1), pair + self.pair_norm(earlier_pair)


class Pass(nn.Module):
    """Algorithm 2, one cycle: embeddings and the stack. There is nothing to recycle in the first pass."""

    def __init__(self, embedding: Embedding, evoformer: nn.ModuleList, recycle: Recycle | None):
        super().__init__()
        self.embedding = embedding
        self.recycle = recycle
        self.evoformer = evoformer

    def forward(self, letters: Tensor, earlier: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        # Again in each pass, as the algorithm has it: no gradient reaches the passes before the last.
        msa, pair = self.embedding(letters)
        if self.recycle is not None and earlier is not None:
            msa, pair = self.recycle(msa, pair, *earlier)
        for block in self.evoformer:
            msa, pair = block(msa, pair)
        return msa, pair


class AlphaFold2(nn.Module):
    """``letters`` int64 [b, sequences, residues]; ``hidden`` the letters that were masked, elsewhere -100;
    ``distances`` int64 [b, residues, residues] the bin of each distance.
    """

    def __init__(self, size: Size):
        super().__init__()
        first = Pass(Embedding(size), nn.ModuleList(Evoformer(size) for _ in range(size.blocks)), None)
        passes = [first]
        if size.recycles:
            second = Pass(_sharing(first.embedding), _sharing(first.evoformer), Recycle(size))
            passes += [second, *(_sharing(second) for _ in range(size.recycles - 1))]
        self.passes = nn.ModuleList(passes)
        self.letters = nn.Linear(size.msa_width, LETTERS)
        self.distances = nn.Linear(size.pair_width, size.bins)

    def forward(self, letters: Tensor, hidden: Tensor, distances: Tensor) -> Result:
        earlier = None
        for index, one in enumerate(self.passes):
            msa, pair = one(letters, earlier)
            if index + 1 < len(self.passes):
                earlier = msa.detach(), pair.detach()
        found = self.distances(pair)
        loss = mean_by_sample(self.letters(msa), hidden) + mean_by_sample(found + found.transpose(1, 2), distances)
        return Result(loss.mean())


def _sharing(module: nn.Module) -> nn.Module:
    """The same modules again, with the same parameters."""
    return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})


def mean_by_sample(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy [b] of logits [b, rows, columns, classes], the mean over a sample's targets that aren't -100.

    By sample, so that the loss of a batch is the mean of its samples' however many targets each has.
    """
    # Sums over classes need more than 16 bits.
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    losses = cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.unflatten(0, targets.shape).sum((1, 2)) / (targets != IGNORED).sum((1, 2))


def factory(name: str) -> Callable[[], nn.Module]:
    """What builds the model of that name."""
    return lambda: AlphaFold2(SIZES[name])


def example(name: str) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of the shape that training uses, for any number of samples."""
    size = SIZES[name]

    def inputs(samples: int) -> dict[str, Tensor]:
        msa, pair = (samples, size.sequences, size.residues), (samples, size.residues, size.residues)
        return {
            name: torch.zeros(shape, dtype=torch.long)
            for name, shape in (("letters", msa), ("hidden", msa), ("distances", pair))
        }

    return inputs
