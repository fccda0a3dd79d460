"""At the command line: a recipe trained under one plan goes on under another, in another form of checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partita.cli.main import main

pytestmark = pytest.mark.slow

STATED = ["--cluster", "cpu", "--global-batch", "4", "--seq", "16", "--precision", "fp32"]


def test_from_torchs_optimizer_to_deepspeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def losses(*words: str) -> list[tuple[str, str]]:
        """The step and the loss of each line that a run logs."""
        capfd.readouterr()
        status = main(["run", "gpt3-tiny", *words])
        out, err = capfd.readouterr()
        assert status == 0, err
        return re.findall(r"^step +(\d+)  loss (\d+\.\d{6})", out, re.M)

    monkeypatch.chdir(tmp_path)
    for name, target, devices in (("a", "partita", "1"), ("b", "deepspeed", "2")):
        words = ["plan", "gpt3-tiny", *STATED, "--target", target, "--devices", devices, "--fix", f"pp={devices}"]
        assert main([*words, "-o", str(tmp_path / f"{name}.json")]) == 0
    wanted = losses("--plan", "a.json", "--steps", "3")
    assert losses("--plan", "a.json", "--steps", "2", "--checkpoint", "saved") == wanted[:2]
    words = ["reshard", str(tmp_path / "saved"), "--to", str(tmp_path / "b.json")]
    assert main([*words, "-o", str(tmp_path / "for_b")]) == 0
    ((step, loss),) = losses("--plan", "b.json", "--steps", "1", "--resume", "for_b")
    assert step == "3"
    assert float(loss) == pytest.approx(float(wanted[2][1]), abs=1e-5)
