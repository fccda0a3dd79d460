"""What is drawn for a model: in range, some labels ignored, the same samples however they are divided."""

from __future__ import annotations

import pytest
import torch

from partita.adapters.verify.batch import Batches, Range, ranges, wide
from partita.spacetime.program import Share
from tests.runtime.models import SEQ, VOCABULARY
from tests.verify.models import model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gpt2", {"input_ids": Range(VOCABULARY, False), "labels": Range(VOCABULARY, True),
                  "attention_mask": Range(None, False)}),
        # The decoder reads the labels too, with another token for those that are ignored.
        ("t5", {"input_ids": Range(VOCABULARY, False), "labels": Range(VOCABULARY, True),
                "attention_mask": Range(None, False)}),
        ("vit", {"labels": Range(3, True)}),
        ("skip", {}),
    ],
)  # fmt: skip
def test_ranges_come_from_what_reads_an_input(name: str, wanted: dict[str, Range]) -> None:
    assert ranges(model(name).captured.graph) == wanted


@pytest.mark.slow
def test_micro_batches_count_unequal_tokens_and_are_parts_of_the_whole() -> None:
    found = model("gpt2")
    batches = Batches(found.captured, wide(found.example), 12, seed=3)
    batch = batches.batch(0)
    assert {name: tuple(value.shape) for name, value in batch.items()} == dict.fromkeys(batch, (12, SEQ))
    labels = batch["labels"]
    assert int(labels.max()) < VOCABULARY
    assert set(labels[labels < 0].tolist()) == {-100}
    of_copies = [list(batches.micro_batches(batch, Share(2, 3, 2), copy)) for copy in (0, 1)]
    # A turn's samples over the copies, then those of the next.
    parts = [part["labels"] for turn in zip(*of_copies, strict=True) for part in turn]
    assert len({int((part != -100).sum()) for part in parts}) > 1
    assert torch.equal(torch.cat(parts), labels)
    assert not torch.equal(batches.batch(1)["input_ids"], batch["input_ids"])
    assert torch.equal(batches.batch(0)["input_ids"], batch["input_ids"])


def test_floating_inputs_are_wide_and_differ_by_sample() -> None:
    found = model("skip")
    drawn = Batches(found.captured, wide(found.example), 8, seed=0).batch(0)["x"]
    assert drawn.dtype == torch.float64
    assert len(set(drawn.tolist())) == 8
