"""The Trainer's example under torchrun, with the key and without: the same text, the same losses and weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "trainer"
LAUNCH = ROOT / "tests" / "loop" / "without_shm.py"
ALONE = {"pipeline": "off", "tensor_parallel": "off"}
PLANS: dict[str, tuple[int, dict[str, Any], str]] = {
    "as it stands": (2, {}, ""),
    "dp2": (2, {"zero_optimization": {"stage": 0}, "partita": ALONE}, "pp=1, tp=1, dp=2, ZeRO 0"),
    "zero2": (2, {"zero_optimization": {"stage": 2}}, "pp=1, tp=1, dp=2, ZeRO 2"),
    "zero3": (2, {"zero_optimization": {"stage": 3}}, "pp=1, tp=1, dp=2, ZeRO 3"),
    "pp2": (2, {"partita": {"fix": {"pp": 2}}}, "pp=2, tp=1, dp=1"),
    "tp2": (2, {"partita": {"fix": {"tp": 2}}}, "pp=1, tp=2, dp=1"),
    "pp2 dp2": (4, {"partita": {"fix": {"pp": 2, "dp": 2}}}, "pp=2, tp=1, dp=2"),
    "pp2 tp2": (4, {"partita": {"fix": {"pp": 2, "tp": 2}}}, "pp=2, tp=2, dp=1"),
}


def run(folder: Path, ranks: int, change: dict[str, Any], *options: str) -> str:
    """The script as it stands, with another configuration; what it said on stderr."""
    config = json.loads((EXAMPLE / "ds.json").read_text())
    config = {name: value for name, value in {**config, **change}.items() if value is not None}
    (folder / "ds.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    done = subprocess.run(
        [*command, str(LAUNCH), str(EXAMPLE / "train.py"), "ds.json", *options], cwd=folder, capture_output=True,
        text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"},
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
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a run without the key, by the number of ranks."""

    @cache
    def of(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp(f"plain{ranks}")
        assert "partita" not in run(folder, ranks, {"partita": None, "zero_optimization": {"stage": 0}})
        return folder

    return of


@pytest.mark.parametrize("name", PLANS)
def test_equal_losses(tmp_path: Path, without: Any, name: str) -> None:
    ranks, change, words = PLANS[name]
    assert f"partita: plan for {ranks} ranks: {words}" in run(tmp_path, ranks, change)
    found, wanted = logged(tmp_path), logged(without(ranks))
    assert [one[:2] for one in found] == [one[:2] for one in wanted]
    assert [one[2] for one in found] == pytest.approx([one[2] for one in wanted], rel=1e-5)
    assert len(wanted) > 8
    assert wanted[0][2] - wanted[-3][2] > 0.3
    saved, dense = weights(tmp_path), weights(without(ranks))
    assert saved.keys() == dense.keys()
    # Adam moves a key's bias, whose gradient is nothing but rounding, by the whole learning rate.
    for key, value in dense.items():
        if not key.endswith("attn.c_attn.bias"):
            assert float((saved[key] - value).norm()) <= 1e-4 * float(value.norm()), key


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, 2, {"partita": {"fix": {"pp": 2}}})
    wanted, dense = logged(tmp_path), weights(tmp_path)
    last = max((tmp_path / "out").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(last)
    run(tmp_path, 2, {"partita": {"fix": {"pp": 2}}}, "--resume")
    assert last.exists()
    assert logged(tmp_path) == wanted
    assert all(bool((value == dense[key]).all()) for key, value in weights(tmp_path).items())
