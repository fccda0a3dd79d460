"""A user's loop goes on under another plan: with the groups, the schedule and the state that it had."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.cli.main import main
from tests.ranks.pool import Pool
from tests.reshard import looping


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("pp2 dp2", "tp2 dp2"), ("tp2 dp2", "zero3"), ("zero3", "pp2 dp2")])
def test_a_loop_goes_on(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str
) -> None:
    saved, out = tmp_path / "saved", tmp_path / "out"
    uninterrupted = pool.run(looping.saved, 4, before, str(saved), timeout=120)
    pool.run(looping.plan_of, 4, after, str(tmp_path / "plan.json"), timeout=120)
    words = ["reshard", str(saved), "--to", str(tmp_path / "plan.json"), "--model", "tests.reshard.models:words"]
    assert main([*words, "-o", str(out)]) == 0, capsys.readouterr().err
    for rank, (losses, rates, mine, epoch) in enumerate(pool.run(looping.resumed, 4, after, str(out), timeout=120)):
        assert losses == pytest.approx(uninterrupted[rank], rel=1e-5)
        assert rates == pytest.approx([0.0025, 0.005])
        assert (mine, epoch) == (7, 2)
