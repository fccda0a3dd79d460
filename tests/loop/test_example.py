"""The example script under torchrun, with the key and without: the same text, the same losses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "loop"
LAUNCH = Path(__file__).parent / "without_shm.py"
ALONE = {"pipeline": "off", "tensor_parallel": "off"}
PLANS: dict[str, tuple[int, dict[str, Any], str]] = {
    "dp2": (2, {"partita": {**ALONE, "fix": {"zero": 0}}}, "pp=1, tp=1, dp=2, ZeRO 0"),
    "zero2": (2, {"zero_optimization": {"stage": 2}, "partita": {}}, "pp=1, tp=1, dp=2, ZeRO 2"),
    "zero3": (2, {"zero_optimization": {"stage": 3}, "partita": {}}, "pp=1, tp=1, dp=2, ZeRO 3"),
    "pp2": (2, {"partita": {"fix": {"pp": 2}}}, "pp=2, tp=1, dp=1"),
    "tp2": (2, {"partita": {"fix": {"tp": 2}}}, "pp=1, tp=2, dp=1"),
    "pp2 dp2": (4, {"partita": {"fix": {"pp": 2, "dp": 2}}}, "pp=2, tp=1, dp=2"),
    "pp2 tp2": (4, {"partita": {"fix": {"pp": 2, "tp": 2}}}, "pp=2, tp=2, dp=1"),
}


def run(folder: Path, ranks: int, change: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """The script as it stands, with another configuration."""
    config = json.loads((EXAMPLE / "ds.json").read_text())
    assert config.pop("partita") == {}
    (folder / "ds.json").write_text(json.dumps({**config, **change}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return subprocess.run(
        [*command, str(LAUNCH), str(EXAMPLE / "train.py"), "ds.json", *options], cwd=folder, capture_output=True,
        text=True, timeout=250, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def losses(found: subprocess.CompletedProcess[str]) -> list[float]:
    assert found.returncode == 0, found.stderr[-3000:]
    return [float(text) for text in re.findall(r"loss (\d+\.\d+)", found.stdout)]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The losses without the key, by the number of ranks."""

    @cache
    def of(ranks: int) -> list[float]:
        found = run(tmp_path_factory.mktemp(f"plain{ranks}"), ranks, {}, "--epochs=1")
        assert "partita" not in found.stderr
        return losses(found)

    return of


@pytest.mark.parametrize("name", PLANS)
def test_equal_losses(tmp_path: Path, without: Any, name: str) -> None:
    ranks, change, words = PLANS[name]
    found = run(tmp_path, ranks, change, "--epochs=1", "--output=out")
    assert losses(found) == pytest.approx(without(ranks), rel=1e-5)
    assert len(without(ranks)) > 5
    assert f"partita: plan for {ranks} ranks: {words}" in found.stderr
    assert (tmp_path / "out" / "checkpoint" / "latest").exists()
    assert (tmp_path / "out" / "model" / "pytorch_model.bin").stat().st_size > 4 * 200_000


@pytest.mark.parametrize("cluster", [None, "4x8xa100-80gb"])
def test_a_dry_run_prints_the_plan_and_ends_well(tmp_path: Path, cluster: str | None) -> None:
    key = {"dry_run": True, "fix": {"pp": 2}, **({"cluster": cluster} if cluster else {})}
    found = run(tmp_path, 2, {"partita": key})
    assert found.returncode == 0, found.stderr[-3000:]
    assert "loss" not in found.stdout
    devices = "32" if cluster else "2"
    assert re.search(rf"\b{devices}\b", found.stdout)
    assert found.stdout.count("where the step goes") == 1
