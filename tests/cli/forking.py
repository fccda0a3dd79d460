"""What ranks of the tests of ``run_forked`` do; no torch."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from partita.errors import PlanError
from partita.launch import run_forked

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OWN")


def begin(words: Sequence[str]) -> Callable[[], None]:
    folder, then = words
    if then == "refused":
        raise PlanError("the plan's own words")
    if then == "slow":
        Path(folder, "begun").touch()
        time.sleep(600)
    return partial(rank, Path(folder), then, os.getpid())


def rank(folder: Path, then: str, parent: int) -> None:
    """Write down this process, one that it started and what it finds; when all have done so, what ``then`` says."""
    own = os.environ["RANK"]
    child = subprocess.Popen(["sleep", "600"])
    found = [os.environ[name] for name in NAMES], sys.stdin.read(), Path("/proc/self/comm").read_text(), random.random()
    (folder / "part").mkdir(exist_ok=True)
    (folder / "part" / own).write_text(json.dumps([os.getpid(), child.pid, parent, *found]))
    os.rename(folder / "part" / own, folder / own)
    while len([path for path in folder.iterdir() if path.name.isdigit()]) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    if then == "end":
        child.kill()
        return
    if own == "1":
        if then == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if then == "raised":
            raise ValueError("what is wrong")
        if then == "wrong":
            raise PlanError("the rank's own words")
        if then == "left":
            sys.exit(7)
    time.sleep(600)


def start(folder: str, then: str) -> int:
    """Three ranks, in a process whose signals are as a terminal's shell leaves them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_forked("tests.cli.forking", [folder, then], 3, {**os.environ, "OWN": "kept"})


if __name__ == "__main__":
    sys.exit(start(*sys.argv[1:]))
