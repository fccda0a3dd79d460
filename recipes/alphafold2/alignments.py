"""Alignments made up by rule, so that nothing needs a download: related sequences in which pairs of columns covary.

A protein is random letters. Every other sequence of the alignment copies it with mutations; where two residues touch,
the letter of one decides the other's, so that both mutate together. What is learnt from: hidden letters, and distances,
which are those along the chain but for the pairs that touch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partita.recipes.alphafold2.model import IGNORED, MASK
from partita.recipes.alphafold2.sizes import Size

AMINO_ACIDS = 20
MUTATED, HIDDEN = 0.3, 0.125


class Alignments:
    """Random alignments, drawn by (seed, step): the same on every rank, however they are divided."""

    def __init__(self, size: Size, seed: int):
        self.size = size
        self.seed = seed

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """The global batch of a step: ``letters`` and ``hidden`` int64 [count, sequences, residues], ``distances``
        int64 [count, residues, residues].
        """
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        samples = [self._sample(generator) for _ in range(count)]
        return {
            name: torch.stack([sample[index] for sample in samples])
            for index, name in enumerate(("letters", "hidden", "distances"))
        }

    def _sample(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns = self.size.sequences, self.size.residues
        one, other = torch.randperm(columns, generator=generator)[: columns // 2 * 2].view(2, -1)
        protein = torch.randint(AMINO_ACIDS, (columns,), generator=generator)
        fresh = torch.randint(AMINO_ACIDS, (rows, columns), generator=generator)
        mutates = torch.rand(rows, columns, generator=generator) < MUTATED
        mutates[0] = False
        letters = torch.where(mutates, fresh, protein)
        # A rule that every protein shares: 7 has no factor in common with 20, so each letter has its own partner.
        letters[:, other] = (7 * letters[:, one] + 3) % AMINO_ACIDS

        hides = torch.rand(rows, columns, generator=generator) < HIDDEN
        # The protein is known; of the others at least one letter is hidden, so that there is something to find.
        hides[0] = False
        hides[-1, 0] = True
        hidden = torch.where(hides, letters, IGNORED)

        place = torch.arange(columns)
        distances = (place.unsqueeze(1) - place).abs().clamp(max=self.size.bins - 1)
        distances[one, other] = distances[other, one] = 1
        return torch.where(hides, MASK, letters), hidden, distances
