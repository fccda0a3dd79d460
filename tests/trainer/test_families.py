"""Families of models through an unmodified Trainer: with the key as with DeepSpeed alone on the same ranks, and as in
one process where that is so without the key.

By SGD without clipping, which shows a gradient that is a multiple of what it should be; Adam would hide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.pool import Pool
from tests.trainer.compare import assert_equal
from tests.trainer.families import FAMILIES
from tests.trainer.training import Outcome, Run, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ARGUMENTS = {
    "optim": "sgd", "learning_rate": 2e-2, "weight_decay": 0.0, "max_grad_norm": 0.0, "max_steps": 2,
    "gradient_accumulation_steps": 3,
}  # fmt: skip
KEYS: dict[str, dict[str, Any]] = {"dp2": {"fix": {"dp": 2}}, "pp2": {"fix": {"pp": 2}}}
# Their models count what num_items_in_batch says; the others average over a rank's own batch.
COUNTING = ("gpt2", "llama")
# Compared with one process below: its ranks have different numbers of labels.
UNEQUAL = "bert unequal"


@cache
def plain(pool: Pool, folder: Path, family: str) -> Sequence[Outcome]:
    return pool.run(train, 2, Run(family, arguments=ARGUMENTS, evaluated=12), str(folder), timeout=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


# Stages need every family's layers to be cut; copies alone but one family of each way to average a loss (T5's: BERT's).
TABLE = [
    *((family, "pp2") for family in FAMILIES if family != UNEQUAL),
    *((family, "dp2") for family in ("gpt2", "bert", "vit")),
]


@pytest.mark.parametrize(("family", "name"), TABLE)
def test_a_family_learns_as_without_the_key(pool: Pool, folder: Path, tmp_path: Path, family: str, name: str) -> None:
    wanted = plain(pool, folder / family, family)
    run = Run(family, KEYS[name], arguments=ARGUMENTS, evaluated=12)
    assert_equal(pool.run(train, 2, run, str(tmp_path), timeout=200), wanted)
    assert max(wanted[0].losses) - min(wanted[0].losses) > 1e-4


@pytest.mark.parametrize("family", COUNTING)
def test_what_is_compared_with_is_one_process(pool: Pool, folder: Path, tmp_path: Path, family: str) -> None:
    arguments = {**ARGUMENTS, "per_device_eval_batch_size": 6}
    run = Run(family, arguments=arguments, batch=4, evaluated=12)
    assert_equal(plain(pool, folder / family, family), pool.run(train, 1, run, str(tmp_path), timeout=200))


@pytest.mark.parametrize("name", KEYS)
def test_tokens_count_alike_on_whatever_rank_they_are(pool: Pool, folder: Path, tmp_path: Path, name: str) -> None:
    """BERT averages over the labels of a call. With two ranks the Trainer doubles that, and the mean of two ranks'
    means would weigh labels by their neighbours; with the key it is the mean over all of them, as in one process."""
    one = Run(UNEQUAL, arguments={**ARGUMENTS, "learning_rate": 4e-2}, batch=4)
    (wanted,) = pool.run(train, 1, one, str(folder), timeout=200)
    found = pool.run(train, 2, Run(UNEQUAL, KEYS[name], arguments=ARGUMENTS), str(tmp_path), timeout=200)
    for outcome in found:
        outcome.logs = [{**one, "loss": one["loss"] / 2} if "loss" in one else one for one in outcome.logs]
        # An evaluation weighs batches alike, whatever they hold, and two ranks' are not those of one process.
        outcome.logs = [one for one in outcome.logs if "eval_loss" not in one]
        outcome.metrics["eval_loss"] = wanted.metrics["eval_loss"]
    wanted.logs = [one for one in wanted.logs if "eval_loss" not in one]
    assert_equal(found, [wanted])
