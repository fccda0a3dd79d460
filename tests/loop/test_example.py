"""The example script with the key and without: the same text, the same losses.

As torchrun starts a script, with processes of its own, tests/failures has another loop and tests/trainer the Trainer's.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.pool import Pool
from tests.ranks.script import script

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "loop"
# One of copies, one of stages, one on four ranks: what a loop may do under each plan is asked of test_loop.
PLANS: dict[str, tuple[int, dict[str, Any], str]] = {
    "zero3": (2, {"zero_optimization": {"stage": 3}, "partita": {}}, "pp=1, tp=1, dp=2, ZeRO 3"),
    "pp2": (2, {"partita": {"fix": {"pp": 2}}}, "pp=2, tp=1, dp=1"),
    "pp2 tp2": (4, {"partita": {"fix": {"pp": 2, "tp": 2}}}, "pp=2, tp=2, dp=1"),
}


def configure(folder: Path, change: dict[str, Any]) -> None:
    """The example's configuration, with another key."""
    config = json.loads((EXAMPLE / "ds.json").read_text())
    assert config.pop("partita") == {}
    (folder / "ds.json").write_text(json.dumps({**config, **change}))


def run(pool: Pool, folder: Path, ranks: int, change: dict[str, Any], *options: str) -> tuple[str, str]:
    """The script as it stands on ranks of the pool: what rank 0 said on stdout and stderr."""
    configure(folder, change)
    everyones = pool.run(script, ranks, str(EXAMPLE / "train.py"), ["ds.json", *options], str(folder), timeout=200)
    assert {ended.status for ended in everyones} == {0}
    assert {ended.out for ended in everyones[1:]} == {""}
    return everyones[0].out, everyones[0].err


def losses(out: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss (\d+\.\d+)", out)]


@pytest.fixture(scope="module")
def without(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The losses without the key, by the number of ranks."""

    @cache
    def of(ranks: int) -> list[float]:
        out, err = run(pool, tmp_path_factory.mktemp(f"plain{ranks}"), ranks, {}, "--epochs=1")
        assert "partita" not in err
        return losses(out)

    return of


def require_saved(folder: Path) -> None:
    assert (folder / "out" / "checkpoint" / "latest").exists()
    assert (folder / "out" / "model" / "pytorch_model.bin").stat().st_size > 4 * 200_000


@pytest.mark.parametrize("name", PLANS)
def test_equal_losses(pool: Pool, tmp_path: Path, without: Any, name: str) -> None:
    ranks, change, words = PLANS[name]
    out, err = run(pool, tmp_path, ranks, change, "--epochs=1", "--output=out")
    assert losses(out) == pytest.approx(without(ranks), rel=1e-5)
    assert len(without(ranks)) > 5
    assert f"partita: plan for {ranks} ranks: {words}" in err
    require_saved(tmp_path)


def require_dry(out: str, devices: int) -> None:
    assert "loss" not in out
    assert re.search(rf"\b{devices}\b", out)
    assert out.count("where the step goes") == 1


def test_a_dry_run_prints_the_plan_and_ends_well(pool: Pool, tmp_path: Path) -> None:
    out, _ = run(pool, tmp_path, 2, {"partita": {"dry_run": True, "fix": {"pp": 2}}})
    require_dry(out, 2)
    out, _ = run(pool, tmp_path, 2, {"partita": {"dry_run": True, "fix": {"pp": 2}, "cluster": "4x8xa100-80gb"}})
    require_dry(out, 32)
