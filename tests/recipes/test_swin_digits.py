"""The digits that Swin learns from: real, drawn by seed and step alone, and divided over copies without a rest."""

from __future__ import annotations

import pytest
import torch

from partita.recipes.swin.digits import Digits
from partita.recipes.train import micro_batches
from partita.spacetime.program import Share


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_seed_and_step_decide() -> None:
    first = Digits(32, torch.float32, 0).batch(3, 8)
    assert same(first, Digits(32, torch.float32, 0).batch(3, 8))
    assert not same(first, Digits(32, torch.float32, 0).batch(4, 8))
    assert not same(first, Digits(32, torch.float32, 1).batch(3, 8))


def test_they_are_scikit_learns_with_their_labels() -> None:
    """At their own size nothing is enlarged: each is found among the originals, and so is its label."""
    from sklearn.datasets import load_digits

    found = load_digits()
    batch = Digits(8, torch.float32, 0).batch(0, 32)
    for image, label in zip(batch["pixel_values"], batch["labels"].tolist(), strict=True):
        greys = (image + 1) * 8
        # Black and white is as good as grey to a model of three channels.
        assert torch.equal(greys[0], greys[1])
        assert torch.equal(greys[0], greys[2])
        matches = [i for i, other in enumerate(found.images) if (other == greys[0].numpy()).all()]
        assert label in {int(found.target[i]) for i in matches}


@pytest.mark.parametrize(("side", "dtype"), [(32, torch.float32), (224, torch.bfloat16)])
def test_shapes_and_dtypes(side: int, dtype: torch.dtype) -> None:
    batch = Digits(side, dtype, 0).batch(0, 4)
    assert batch["pixel_values"].shape == (4, 3, side, side)
    assert batch["pixel_values"].dtype == dtype
    assert batch["labels"].shape == (4,)
    assert batch["labels"].dtype == torch.long
    assert -1 <= batch["pixel_values"].min() < batch["pixel_values"].max() <= 1


@pytest.mark.parametrize(("copies", "samples", "count"), [(1, 12, 1), (1, 3, 4), (4, 3, 1), (2, 2, 3), (3, 1, 4)])
def test_copies_share_a_batch(copies: int, samples: int, count: int) -> None:
    whole = Digits(8, torch.float32, 0).batch(0, 12)
    of_copies = [micro_batches(whole, Share(copies, count, samples), copy) for copy in range(copies)]
    parts = [part for turn in zip(*of_copies, strict=True) for part in turn]
    assert len(parts) == copies * count
    assert all(len(part["labels"]) == samples for part in parts)
    assert same(whole, {name: torch.cat([part[name] for part in parts]) for name in whole})
