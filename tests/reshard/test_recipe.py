"""At the command line: a recipe trained under one plan goes on under another, in another form of checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from partita.cli.main import main
from partita.recipes.gpt3.hooks import Gpt3
from partita.recipes.one_device import losses_on_one_device

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
    work = Gpt3().workload("gpt3-tiny", seq=16, dtype=torch.float32, seed=0, files={"text": None})
    wanted = losses_on_one_device(work, steps=3, global_batch=4, learning_rate=1e-3, seed=0)
    before = losses("--plan", "a.json", "--steps", "2", "--checkpoint", "saved")
    assert [step for step, _ in before] == ["1", "2"]
    assert [float(loss) for _, loss in before] == pytest.approx(wanted[:2], abs=1e-5)
    words = ["reshard", str(tmp_path / "saved"), "--to", str(tmp_path / "b.json")]
    assert main([*words, "-o", str(tmp_path / "for_b")]) == 0
    ((step, loss),) = losses("--plan", "b.json", "--steps", "1", "--resume", "for_b")
    assert step == "3"
    assert float(loss) == pytest.approx(wanted[2], abs=1e-5)
