"""The real ``partita run``: processes on this machine, real data, losses compared with one device."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from partita.cli.main import main
from partita.launch import quiet_environment, run_ranks
from partita.plan import load_plan
from partita.recipes.start import PLANNED, shared_words, start_one_device

CLI = str(Path(sys.executable).parent / "partita")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """``partita run RECIPE --steps 3 WORDS`` in a folder of its own, which must succeed: stdout and stderr of all."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: str) -> tuple[str, str]:
        status = main(["run", name, "--steps", "3", *words])
        out, err = capfd.readouterr()
        assert status == 0, err
        return out, err

    return run


RUNS = {
    "pp2 tp2": (["--fix", "pp=2", "--fix", "tp=2"], "pp=2, tp=2, dp=1"),
    "megatron": (["--devices", "2", "--fix", "tp=2", "--target", "megatron"], "tp=2"),
}


@pytest.mark.parametrize("name", RUNS)
def test_equal_to_one_device(name: str, run: Callable[..., tuple[str, str]]) -> None:
    words, arrangement = RUNS[name]
    out, err = run("gpt3-tiny", *words, "--compare")
    assert arrangement in out
    assert out.endswith("\nequal: true\n")
    assert "Traceback" not in err
    logged = re.findall(
        r"^step +(\d+)  loss (\d\.\d{6})  +\d+ tokens/s  step \d+\.\d{3} s \(predicted \d\.\d{3} s\)$",
        out,
        re.M,
    )
    compared = re.findall(r"^ +(\d+)    (\d\.\d{6})    \d\.\d{6} +(\S+)$", out, re.M)
    assert [(step, loss) for step, loss, _ in compared] == logged
    assert [step for step, _ in logged] == ["1", "2", "3"]
    assert all(float(difference) <= 1e-4 for _, _, difference in compared)
    # It learns: bytes of English drawn blindly from 257 cost log 257 = 5.55 each.
    losses = [float(loss) for _, loss in logged]
    assert 5.3 < losses[0] < 5.7
    assert losses[2] < losses[1] < losses[0]


def test_images(run: Callable[..., tuple[str, str]]) -> None:
    """By Partita's own runtime, with a plan of the library."""
    words = ["--devices", "2", "--plan-function", "co-shard", "--fix", "pp=2", "--compare"]
    out, err = run("swin-tiny", *words)
    assert "Made by co-shard with shards=2, tp=1, pp=2" in out
    assert "for partita\n" in out
    assert out.endswith("\nequal: true\n")
    assert "Traceback" not in err
    logged = re.findall(r"^step +\d+  loss (\d\.\d{6})  +\d+ images/s  step \d", out, re.M)
    assert len(logged) == 3
    # Ten digits drawn blindly cost log 10 = 2.30.
    assert 2.2 < float(logged[0]) < 3.0


def test_own_text_and_own_plan(tmp_path: Path, run: Callable[..., tuple[str, str]]) -> None:
    """The plan is the planner's choice: nothing is held."""
    text = tmp_path / "own.txt"
    text.write_bytes(b"abcdefgh" * 64)
    words = ["--precision", "fp32", "--cluster", "cpu", "--devices", "2", "--global-batch", "4", "--seq", "16"]
    assert main(["plan", "gpt3-tiny", *words, "-o", str(tmp_path / "plan.json")]) == 0
    out, _ = run("gpt3-tiny", "--plan", "plan.json", "--text", "own.txt", "--checkpoint", "a/b", "--compare")
    assert out.endswith("\nequal: true\n")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", out)]
    # Eight bytes that follow each other: a real text would not be learnt so fast.
    assert losses[2] < 4.5
    assert (tmp_path / "a" / "b" / "latest").read_text() == "global_step3"


def test_a_difference_is_exit_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Losses that the one device will not have."""
    stated = ["--precision", "fp32", "--cluster", "cpu", "--devices", "1", "--global-batch", "4", "--seq", "16"]
    assert main(["plan", "gpt3-tiny", *stated, "-o", str(tmp_path / "plan.json")]) == 0
    plan = load_plan(tmp_path / "plan.json")
    (tmp_path / PLANNED).write_text("[5.5, 5.5]")
    assert start_one_device("gpt3-tiny", plan, shared_words(2, 0.001, 2, {"text": None}), tmp_path) == 1
    assert capfd.readouterr().out.endswith("\nequal: false\n")


def test_fewer_processes_than_devices(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--precision", "fp32", "--cluster", "cpu", "--devices", "2", "--global-batch", "4", "--seq", "16"]
    assert main(["plan", "gpt3-tiny", *words, "-o", str(tmp_path / "plan.json")]) == 0
    command = [sys.executable, "-m", "partita.recipes.train", "gpt3-tiny", "--plan", str(tmp_path / "plan.json")]
    assert run_ranks(command, 1, quiet_environment()) == 2
    err = capfd.readouterr().err
    assert "rank 0: the plan runs on 2 devices, 1 processes were started; start 2\n" in err
    assert "partita: rank 0 of 1 ended with exit status 2\n" in err
    assert "Traceback" not in err


def test_a_killed_rank_ends_the_run(tmp_path: Path) -> None:
    command = [CLI, "run", "gpt3-tiny", "--steps", "100000", "--devices", "2", "--seq", "16", "--global-batch", "4"]
    with (tmp_path / "err").open("w") as err:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, cwd=tmp_path)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("step    3"):
            break
    children = psutil.Process(running.pid).children(recursive=True)
    ranks = {child.name(): child for child in children if child.name().startswith("rank")}
    assert sorted(ranks) == ["rank 0", "rank 1"]
    start = time.monotonic()
    ranks["rank 1"].kill()
    running.stdout.close()
    assert running.wait(60) == 1
    assert time.monotonic() - start < 60
    said = (tmp_path / "err").read_text()
    assert said.splitlines()[-1] == "partita: rank 1 of 2 was killed by SIGKILL; the other ranks were stopped"
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
