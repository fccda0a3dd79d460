"""What one rank can't begin with, all ranks refuse: at once, with the same words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from partita.errors import InputError
from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.models import Batch
from tests.runtime.programs import Layout
from tests.runtime.training import Part, dense_model, global_batch

pytestmark = pytest.mark.slow


def spoiled(batches: list[Batch], how: str) -> Iterator[Batch]:
    """The batches of a step with something wrong with the last one."""
    *good, last = batches
    yield from good
    if how == "missing":
        yield {name: value for name, value in last.items() if name != "input_ids"}
    elif how == "misshapen":
        yield {name: value[:, :-1] for name, value in last.items()}
    elif how == "raises":
        raise OSError("the disk is gone")


def refused(case: Case, how: str, bad: tuple[int, ...]) -> tuple[str, str, float, float]:
    """(message, what caused it, seconds, loss of the next step) when ranks ``bad`` get spoiled micro-batches."""
    part = Part(case, dense_model(case).state_dict())
    batch = global_batch(case, 0)
    good = list(part.micro_batches(batch))
    given: Iterator[Batch] = iter(good)
    if how == "ignored":
        given = iter([{**micro, "labels": torch.full_like(micro["labels"], -100)} for micro in good])
    elif dist.get_rank() in bad:
        given = spoiled(good, how)
    start = time.monotonic()
    try:
        part.train_batch(given)
    except InputError as error:
        seconds = time.monotonic() - start
        return str(error), repr(error.__cause__), seconds, part.step(batch)
    return "", "", 0.0, 0.0


PP2_DP2 = Layout(pp=2, dp=2)
NO_TOKEN = "every label of the global batch is -100: no token to learn from"
CASES = [
    (PP2_DP2, "ignored", (), NO_TOKEN),
    (Layout(pp=2, tp=2), "ignored", (), NO_TOKEN),
    (PP2_DP2, "missing", (0,), 'rank 0: the batch has no "input_ids"; it has labels, attention_mask'),
    (
        PP2_DP2, "misshapen", (1, 3),
        'rank 1: micro-batch 1: "input_ids" has shape [2, 15], the plan was lowered for [2, 16]',
    ),
    (PP2_DP2, "ends", (3,), "rank 3: the iterator ended after 1 micro-batches, the plan needs 2 a step"),
    (PP2_DP2, "ends", (0, 1, 2, 3), "the iterator ended after 1 micro-batches, the plan needs 2 a step"),
    (PP2_DP2, "raises", (2,), "rank 2: OSError: the disk is gone"),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["torch", pytest.param("deepspeed", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("layout", "how", "bad", "message"), CASES)
def test_all_ranks_refuse_what_one_can_not_use(
    pool: Pool, layout: Layout, how: str, bad: tuple[int, ...], message: str, engine: str
) -> None:
    case = replace(Case("gpt2", layout), engine=engine)
    answers = pool.run(refused, layout.devices, case, how, bad)
    assert [answer[0] for answer in answers] == [message] * layout.devices
    causes = [repr(OSError("the disk is gone")) if how == "raises" and rank in bad else "None" for rank in range(4)]
    assert [answer[1] for answer in answers] == causes
    assert max(answer[2] for answer in answers) < 5
    # Nothing had begun: the next step is the first.
    (loss,) = {answer[3] for answer in answers}
    assert loss == pytest.approx(4.87, abs=0.1)
