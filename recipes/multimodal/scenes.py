"""Samples made up by rule, so that nothing needs a download: scenes of which each modality tells another part.

Each modality of a scene is in a state of its own, which a quarter of its positions tell: words of the text, a pattern
in noise of the others. The class of a scene is the states of all modalities. So who knows m of n modalities, and knows
them for certain, loses (n − m) · log(states), and nobody loses less without the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partita.recipes.multimodal.sizes import Size


class Scenes:
    """Random scenes, drawn by (seed, step): the same on every rank, however they are divided."""

    def __init__(self, size: Size, dtype: torch.dtype, seed: int):
        self.size = size
        self.dtype = dtype
        self.seed = seed
        # What tells the states is the same whatever the seed: [states, numbers].
        self.patterns = [
            torch.randn(size.states, numbers, generator=torch.Generator().manual_seed(branch))
            for branch, numbers in enumerate(size.inputs)
        ]

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """The global batch of a step: ``labels`` int64 [count], ``text`` int64 [count, positions], the others
        [count, positions, numbers].
        """
        size, generator = self.size, torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        states = torch.randint(size.states, (count, len(size.inputs)), generator=generator)
        found = {"labels": states @ size.states ** torch.arange(len(size.inputs))}
        for branch, modality in enumerate(size.modalities):
            order = torch.rand(count, size.positions, generator=generator).argsort(1)
            telling, state = order < max(1, size.positions // 4), states[:, branch]
            if modality == "text":
                # The first words of the vocabulary tell a state, the others nothing.
                words = torch.randint(size.states, size.inputs[branch], telling.shape, generator=generator)
                found[modality] = torch.where(telling, state.unsqueeze(1), words)
            else:
                noise = torch.randn(*telling.shape, size.inputs[branch], generator=generator)
                pattern = self.patterns[branch][state].unsqueeze(1)
                found[modality] = (noise + telling.unsqueeze(2) * pattern).to(self.dtype)
        return found
