"""Ranks forked from one process: each finds its place, whoever fails is named, and nobody is left, whoever is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from partita import launch
from tests.cli.test_launch import alive

ROOT = Path(__file__).parents[2]


def begun(folder: Path, then: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tests.cli.forking", str(folder), then]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True)


def ranks(folder: Path) -> list[list[Any]]:
    """What each of three ranks wrote."""
    for _ in range(500):
        if all((folder / str(rank)).exists() for rank in range(3)):
            return [json.loads((folder / str(rank)).read_text()) for rank in range(3)]
        time.sleep(0.02)
    pytest.fail("the ranks didn't start")


def processes(folder: Path) -> list[int]:
    """The ranks, what they started, and the process that forked them."""
    return [*{process for rank in ranks(folder) for process in rank[:3]}]


def test_each_rank_finds_its_place(tmp_path: Path) -> None:
    started = begun(tmp_path, "end")
    assert (started.wait(20), started.stderr.read()) == (0, "")
    found = ranks(tmp_path)
    port = found[0][3][5]
    for rank, (_, _, _, variables, read, name, _) in enumerate(found):
        assert variables == [str(rank), str(rank), "3", "3", "127.0.0.1", port, "kept"]
        assert (read, name) == ("", f"rank {rank}\n")
    assert len({parent for _, _, parent, *_ in found}) == 1
    assert len({drawn for *_, drawn in found}) == 3
    assert alive(processes(tmp_path)) == []


ENDS = {
    "killed": (1, "was killed by SIGKILL", ""),
    "raised": (1, "ended with exit status 1", "\nValueError: what is wrong\n"),
    "wrong": (2, "ended with exit status 2", "rank 1: the rank's own words\n"),
    "left": (7, "ended with exit status 7", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("then", ENDS)
def test_one_rank_ends_all(then: str, tmp_path: Path) -> None:
    status, how, before = ENDS[then]
    started = begun(tmp_path, then)
    assert started.wait(20) == status
    said = started.stderr.read()
    assert said.splitlines()[-1] == f"partita: rank 1 of 3 {how}; the other ranks were stopped"
    assert before in said
    assert alive(processes(tmp_path)) == []


def test_what_all_have_in_common_fails_once(tmp_path: Path) -> None:
    started = begun(tmp_path, "refused")
    assert (started.wait(20), started.stderr.read()) == (2, "partita: the plan's own words\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -2), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_whoever_ends_the_launcher_ends_all(number: int, status: int, tmp_path: Path) -> None:
    started = begun(tmp_path, "wait")
    left = processes(tmp_path)
    assert len(alive(left)) == 7
    started.send_signal(number)
    assert started.wait(10) == status
    assert gone(left)


def test_ctrl_c_before_there_are_ranks(tmp_path: Path) -> None:
    started = begun(tmp_path, "slow")
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    started.send_signal(signal.SIGINT)
    assert started.wait(10) == -signal.SIGINT
    assert "partita:" not in started.stderr.read()


def test_the_process_that_forks_them_is_killed(tmp_path: Path) -> None:
    started = begun(tmp_path, "wait")
    found = ranks(tmp_path)
    os.kill(found[0][2], signal.SIGKILL)
    assert started.wait(10) == 1
    assert gone([rank[0] for rank in found])
    # What they had started is left, and holds their stderr.
    for _, child, *_ in found:
        os.kill(child, signal.SIGKILL)
    says = "partita: the process that forks the ranks was killed by SIGKILL, they ended with it\n"
    assert started.stderr.read() == says


def gone(numbers: list[int]) -> bool:
    """Soon, where nobody waits for them."""
    deadline = time.monotonic() + 10
    while alive(numbers) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(numbers)


def test_where_a_process_with_torch_cannot_be_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a GPU: each rank is a process that begins by itself."""
    monkeypatch.setattr(launch, "DRIVERS", ("/dev/null",))
    (tmp_path / "alone.py").write_text(
        "import os, sys, pathlib\npathlib.Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['WORLD_SIZE'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert launch.run_forked("alone", [str(tmp_path)], 2, environment) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2", "2"]
