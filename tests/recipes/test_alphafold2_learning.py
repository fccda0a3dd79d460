"""The Evoformer recipe reads its alignments: it learns what the protein alone does not say."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch

from partita.recipes.alphafold2.sizes import SIZES

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from alphafold2_learning import distances_of_protein, letter_of_protein, losses, train

STEPS = 350
# Of the letter l its partner is 7l + 3 mod 20. What is given: letters; the distances that they leave open.
PROTEINS = {
    "one matching": ([0, 3, 5, 18], 0.0),
    # 0 with 1 and 2 with 3, or 0 with 3 and 1 with 2: of these only 0 and 3 aren't neighbours anyway.
    "two matchings": ([0, 3, 0, 3], log(2)),
}


@pytest.mark.parametrize("name", PROTEINS)
def test_the_bound_of_distances_of_small_proteins(name: str) -> None:
    letters, entropy = PROTEINS[name]
    assert float(distances_of_protein(torch.tensor([letters]))) == pytest.approx(2 * entropy / 16, abs=1e-12)


@pytest.mark.slow
def test_it_learns_more_than_the_protein_says(one_thread: None) -> None:
    """Two blocks, two passes: unseen letters far below the bound, unseen distances below it."""
    size = replace(SIZES["alphafold2-tiny"], blocks=2, recycles=1)
    (model,) = deque(train(size, STEPS, 1e-2), maxlen=1)
    letters, distances, bound = losses(model, size)
    assert 0.05 < bound < 0.07
    assert letters < 0.75 * letter_of_protein()
    assert distances < bound
