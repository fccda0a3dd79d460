"""The Trainer's example with the key and without: the same text, the same losses and weights. Once as torchrun starts
it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.pool import Pool
from tests.ranks.script import script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "trainer"
LAUNCH = ROOT / "tests" / "loop" / "without_shm.py"
# One of stages, one on four ranks: what the Trainer can do under each, and ZeRO's stages, are asked of test_trainer.
PLANS: dict[str, tuple[int, dict[str, Any], str]] = {
    "as it stands": (2, {}, ""),
    "pp2": (2, {"partita": {"fix": {"pp": 2}}}, "pp=2, tp=1, dp=1"),
    "pp2 tp2": (4, {"partita": {"fix": {"pp": 2, "tp": 2}}}, "pp=2, tp=2, dp=1"),
}

BY_TORCHRUN = "as it stands"


def configure(folder: Path, change: dict[str, Any]) -> None:
    config = json.loads((EXAMPLE / "ds.json").read_text())
    config = {name: value for name, value in {**config, **change}.items() if value is not None}
    (folder / "ds.json").write_text(json.dumps(config))


def run(pool: Pool, folder: Path, ranks: int, change: dict[str, Any], *options: str) -> str:
    """The script as it stands on ranks of the pool, with another configuration; what rank 0 said on stderr."""
    configure(folder, change)
    everyones = pool.run(script, ranks, str(EXAMPLE / "train.py"), ["ds.json", *options], str(folder), timeout=280)
    assert {ended.status for ended in everyones} == {0}
    return everyones[0].err


def torchrun(folder: Path, change: dict[str, Any]) -> str:
    """The same in two processes of the script's own."""
    configure(folder, change)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(LAUNCH)]
    done = subprocess.run(
        [*command, str(EXAMPLE / "train.py"), "ds.json"], cwd=folder, capture_output=True, text=True, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def logged(folder: Path) -> list[tuple[int, str, float]]:
    """(step, what, value) of every loss and accuracy in the Trainer's own record of the run."""
    last = max((folder / "out").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    kinds = ("loss", "eval_loss", "eval_accuracy")
    return [(one["step"], kind, one[kind]) for one in history for kind in kinds if kind in one]


def weights(folder: Path) -> dict[str, Any]:
    from transformers import GPT2LMHeadModel

    return dict(GPT2LMHeadModel.from_pretrained(folder / "out").state_dict())


@pytest.fixture(scope="module")
def without(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of a run without the key, by the number of ranks."""

    @cache
    def of(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp(f"plain{ranks}")
        assert "partita" not in run(pool, folder, ranks, {"partita": None, "zero_optimization": {"stage": 0}})
        return folder

    return of


@pytest.fixture(scope="module")
def planned(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run with the key, by the plan's name."""

    @cache
    def of(name: str) -> Path:
        folder = tmp_path_factory.mktemp("planned")
        ranks, change, words = PLANS[name]
        said = torchrun(folder, change) if name == BY_TORCHRUN else run(pool, folder, ranks, change)
        assert f"partita: plan for {ranks} ranks: {words}" in said
        return folder

    return of


@pytest.mark.parametrize("name", PLANS)
def test_equal_losses(planned: Callable[[str], Path], without: Callable[[int], Path], name: str) -> None:
    folder, plain = planned(name), without(PLANS[name][0])
    found, wanted = logged(folder), logged(plain)
    assert [one[:2] for one in found] == [one[:2] for one in wanted]
    assert [one[2] for one in found] == pytest.approx([one[2] for one in wanted], rel=1e-5)
    assert len(wanted) > 8
    assert wanted[0][2] - wanted[-3][2] > 0.3
    saved, dense = weights(folder), weights(plain)
    assert saved.keys() == dense.keys()
    # Adam moves a key's bias, whose gradient is nothing but rounding, by the whole learning rate.
    for key, value in dense.items():
        if not key.endswith("attn.c_attn.bias"):
            assert float((saved[key] - value).norm()) <= 1e-4 * float(value.norm()), key


def test_it_goes_on_from_a_checkpoint(pool: Pool, planned: Callable[[str], Path], tmp_path: Path) -> None:
    whole = planned("pp2")
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    last = max((folder / "out").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(last)
    run(pool, folder, 2, PLANS["pp2"][1], "--resume")
    assert last.exists()
    assert logged(folder) == logged(whole)
    dense = weights(whole)
    assert all(bool((value == dense[key]).all()) for key, value in weights(folder).items())
