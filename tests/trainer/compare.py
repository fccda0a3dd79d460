"""What has to be equal of two runs of the Trainer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.trainer.training import Outcome

RELATIVE = 1e-5


def assert_equal(found: Sequence[Outcome], wanted: Sequence[Outcome], relative: float = RELATIVE) -> None:
    """Losses, evaluations, metrics, predictions and saved weights; gradient norms where both log them.

    ``found`` and ``wanted`` are the outcomes of all ranks of each, maybe of different numbers of them.
    """
    first, other = found[0], wanted[0]
    assert all(one.losses == first.losses and one.evaluations == first.evaluations for one in found)
    assert first.steps == other.steps > 0
    assert len(first.losses) > 0
    _close(first.losses, other.losses, relative)
    _close(first.evaluations, other.evaluations, relative)
    if other.norms:
        _close(first.norms, other.norms, relative)
    _close(first.metrics["eval_loss"], other.metrics["eval_loss"], relative)
    _close(first.metrics["eval_sum"], other.metrics["eval_sum"], relative)
    for one in found:
        assert [array.shape for array in one.predictions] == [array.shape for array in other.predictions]
        assert len(one.labels) == len(other.labels) > 0
        for mine, theirs in zip(one.labels, other.labels, strict=True):
            assert np.array_equal(mine, theirs)
        for mine, theirs in zip(one.predictions, other.predictions, strict=True):
            assert distance(mine, theirs) <= relative
    assert first.weights.keys() == other.weights.keys() != set()
    wrong = {
        name: distance(first.weights[name], value)
        for name, value in other.weights.items()
        if not distance(first.weights[name], value) <= relative
    }
    assert wrong == {}


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Of two arrays, relative to the second's norm."""
    difference = np.linalg.norm((found - wanted).astype(np.float64))
    return float(difference / max(float(np.linalg.norm(wanted.astype(np.float64))), 1e-30))


def _close(found: float | Sequence[float], wanted: float | Sequence[float], relative: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=relative, atol=0)
