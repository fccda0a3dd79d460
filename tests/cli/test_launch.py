"""Ranks on this machine: whoever fails is named, all others end within seconds, and no process is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from partita.gpus import driver_gpus, usable_gpus, visible
from partita.launch import _send, run_ranks

# Every rank writes down its process and one that it started, and then does what its row says.
RANK = """
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])
child = subprocess.Popen(["sleep", "600"])
with open(f"{sys.argv[1]}/{rank}.part", "w") as file:
    print(os.getpid(), child.pid, file=file)
os.rename(f"{sys.argv[1]}/{rank}.part", f"{sys.argv[1]}/{rank}")
while len([name for name in os.listdir(sys.argv[1]) if name.isdigit()]) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
"""
LAUNCH = "import sys; from partita.launch import run_ranks; import os; sys.exit(run_ranks(sys.argv[2:], 3, os.environ))"


def rank(folder: Path, then: str) -> list[str]:
    return [sys.executable, "-c", RANK + then, str(folder)]


def processes(folder: Path) -> list[int]:
    """The three ranks and their children, once all have started."""
    for _ in range(500):
        files = [path for path in folder.iterdir() if path.name.isdigit()]
        if len(files) == 3:
            return [int(word) for path in sorted(files) for word in path.read_text().split()]
        time.sleep(0.02)
    pytest.fail("the ranks didn't start")


def alive(numbers: list[int]) -> list[int]:
    """Those that run; one that nobody waited for has ended too."""
    found = [psutil.Process(number) for number in numbers if psutil.pid_exists(number)]
    return [process.pid for process in found if process.status() != psutil.STATUS_ZOMBIE]


WAIT = "time.sleep(600)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
ENDS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", WAIT, 1, "rank 1 of 3 was killed by SIGKILL"),
    "crashed": ("os.abort()", WAIT, 1, "rank 1 of 3 was killed by SIGABRT"),
    "raised": ("raise ValueError('what is wrong')", WAIT, 1, "rank 1 of 3 ended with exit status 1"),
    "left": ("sys.exit(7)", WAIT, 7, "rank 1 of 3 ended with exit status 7"),
    "the others don't listen": ("sys.exit(7)", STUBBORN, 7, "rank 1 of 3 ended with exit status 7"),
    "the others lose their peer": (
        "os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(0.03); sys.exit(1)", 1, "rank 1 of 3 was killed by SIGKILL",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_one_rank_ends_all(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, others, status, says = ENDS[name]
    start = time.monotonic()
    found = run_ranks(rank(tmp_path, f"if rank == 1: {first}\n{others}"), 3, os.environ)
    # Whoever listens isn't waited for, nor is init, which may be slow to see that a rank's child has ended.
    assert time.monotonic() - start < (12 if others == STUBBORN else 4.5)
    assert (found, alive(processes(tmp_path))) == (status, [])
    err = capfd.readouterr().err
    assert err.splitlines()[-1] == f"partita: {says}; the other ranks were stopped"
    assert ("ValueError: what is wrong" in err) is (name == "raised")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "then"),
    [
        (signal.SIGINT, -signal.SIGINT, WAIT), (signal.SIGTERM, 143, WAIT), (signal.SIGHUP, 129, WAIT),
        (signal.SIGTERM, 143, STUBBORN),
    ],
    ids=str,
)  # fmt: skip
def test_whoever_ends_the_launcher_ends_the_ranks(number: int, status: int, then: str, tmp_path: Path) -> None:
    # These tests may themselves run where a signal is ignored, under nohup say.
    heeded = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    heeded += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", heeded + LAUNCH, "-", *rank(tmp_path, then)]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE)
    started = processes(tmp_path)
    assert len(alive(started)) == 6
    launcher.send_signal(number)
    time.sleep(0.1)
    # Impatience changes nothing: the ranks are ended first.
    launcher.send_signal(number)
    assert launcher.wait(10) == status
    assert alive(started) == []


@pytest.mark.slow
def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    quick = rank(tmp_path, "time.sleep(1)\nchild.kill()")
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {LAUNCH}", "-", *quick]
    )
    processes(tmp_path)
    launcher.send_signal(signal.SIGHUP)
    assert launcher.wait(10) == 0


def test_ranks_find_each_other_and_read_nothing(tmp_path: Path) -> None:
    code = (
        "import json, os, sys\n"
        "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'OWN')\n"
        "found = [*(os.environ[name] for name in names), sys.stdin.read()]\n"
        "json.dump(found, open(f'{sys.argv[1]}/' + os.environ['RANK'], 'w'))\n"
    )
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert run_ranks([sys.executable, "-c", code, str(tmp_path)], 2, {**os.environ, "OWN": "kept"}) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    one, two = (json.loads((tmp_path / name).read_text()) for name in "01")
    port = one[5]
    assert one == ["0", "0", "2", "2", "127.0.0.1", port, "kept", ""]
    assert two == ["1", "1", "2", "2", "127.0.0.1", port, "kept", ""]


@pytest.mark.slow
def test_a_rank_in_a_collective_without_its_peer_is_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    then = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if rank == 2:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.recv(torch.ones(1), 0 if rank else 1)\n"
    )
    assert run_ranks(rank(tmp_path, then), 3, {**os.environ, "OMP_NUM_THREADS": "1"}) == 1
    assert alive(processes(tmp_path)) == []
    assert "partita: rank 2 of 3 was killed by SIGKILL; the other ranks were stopped" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "named", "count"),
    [
        (4, None, 4), (0, None, 0), (0, "0,1", 0), (4, "", 0), (4, "-1", 0), (4, "0", 1), (4, "2,0", 2), (4, "1, 3", 2),
        (4, "0,4,1", 1), (4, "NoDevFiles", 0), (4, "GPU-8932f937,GPU-12", 2), (1, "MIG-1,MIG-2,MIG-3", 3),
    ],
)  # fmt: skip
def test_the_gpus_that_cuda_would_see(gpus: int, named: str | None, count: int) -> None:
    assert visible(["H100"] * gpus, named) == count


@pytest.mark.parametrize(
    ("says", "names"),
    [
        ("echo 'NVIDIA H100'; echo 'NVIDIA A100'", ("NVIDIA H100", "NVIDIA A100")),
        ("echo 'NVIDIA-SMI has failed'; exit 9", ()),
        ("", ()),
    ],
)
def test_the_driver_is_asked(
    says: str, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert (driver_gpus(), usable_gpus()) == (names, len(names))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert driver_gpus() == ()


def test_an_id_that_another_process_has_now() -> None:
    sleep = ["sleep", "600"]
    ended = subprocess.Popen(["true"], process_group=0)
    ended.wait()
    with subprocess.Popen(sleep, process_group=0) as stranger, subprocess.Popen(sleep, process_group=0) as rank:
        ended.pid = stranger.pid
        assert _send([ended, rank], signal.SIGTERM)
        assert rank.wait(10) == -signal.SIGTERM
        assert alive([stranger.pid]) == [stranger.pid]
        stranger.kill()
