"""How micro-batches add up to the global batch, and what is said to batches that the plan was not lowered for."""

from __future__ import annotations

import pytest
import torch

from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.models import Batch
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout
from tests.runtime.training import refusal, train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("samples", "dp"), [(8, 1), (4, 1), (2, 1), (1, 1), (4, 2), (2, 2), (1, 2), (1, 4)])
def test_c09_gradients_are_a_mean_over_the_global_batch(pool: Pool, samples: int, dp: int) -> None:
    case = Case(f"product of {samples}", Layout(dp=dp, micro_batches=8 // samples // dp), dtype="float64", steps=1)
    outcomes = pool.run(train, dp, case)
    assert_equal(case, outcomes)
    # A sum over micro-batches would be 4.5, 9, 18 and 36.
    assert [outcome.values["scale.weight"] for outcome in outcomes] == [[4.5]] * dp
    assert outcomes[0].losses == [4.5]


@pytest.mark.parametrize("layout", [Layout(micro_batches=2), Layout(dp=2, micro_batches=1)])
def test_c09_losses_are_weighted_by_tokens(pool: Pool, layout: Layout) -> None:
    case = Case("two words", layout, steps=1)
    outcomes = pool.run(train, layout.devices, case)
    assert_equal(case, outcomes)
    # (2·1 + 6·3) / 8; the mean of the two means would be 2.
    assert outcomes[0].losses[0] == pytest.approx(2.5, rel=1e-6)


def batch(samples: int = 1, tokens: int = 6, label: int = 0) -> Batch:
    return {"x": torch.ones(samples, tokens), "labels": torch.full((samples, tokens), label)}


BAD = [
    ([batch()], "the iterator ended after 1 micro-batches, the plan needs 2 a step"),
    ([batch(), {"labels": batch()["labels"]}], 'the batch has no "x"; it has labels'),
    ([batch(), batch(samples=3)], 'micro-batch 1: "x" has shape [3, 6], the plan was lowered for [1, 6]'),
    ([batch(tokens=5), batch()], 'micro-batch 0: "x" has shape [1, 5], the plan was lowered for [1, 6]'),
    (
        [batch(), {**batch(), "labels": batch()["labels"].int()}],
        'micro-batch 1: "labels" has dtype int32, the plan was lowered for int64; '
        "give it as int64, or make the example that the plan is lowered with int32",
    ),
    ([batch(label=-100)] * 2, "every label of the global batch is -100: no token to learn from"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_batches_that_do_not_fit(pool: Pool, given: list[Batch], message: str) -> None:
    assert pool.run(refusal, 1, Case("two words", Layout()), given) == [message]
