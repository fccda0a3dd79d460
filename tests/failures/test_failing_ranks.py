"""A rank that fails ends the run within a minute, is named, leaves no process; the last checkpoint goes on.

Real processes, started by ``partita run`` and by torchrun, in which an unmodified script trains under a plan. Where
nothing fails, the script runs on the ranks of the pool.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.ranks.pool import Pool, RankError
from tests.ranks.script import script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("train.py")
STEPS = 6
CONFIGS = {
    "pp2": {"partita": {"fix": {"pp": 2}}},
    "dp2 zero1": {"zero_optimization": {"stage": 1}, "partita": {"pipeline": "off", "tensor_parallel": "off"}},
}
BASE = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True}
STARTS = {
    "partita": [str(Path(sys.executable).parent / "partita"), "run", "--devices", "2"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
}
# What is said of rank 1 where it was killed, and where it raised.
NAMED = {
    "partita": ("rank 1 of 2 was killed by SIGKILL", "rank 1 of 2 ended with exit status 1"),
    "torchrun": (r"Root Cause.*rank +: 1 .*\(SIGKILL\)", r"rank +: 1 "),
}
GONE_SECONDS = 60


def arguments(plan: str, folder: Path, failure: str) -> list[str]:
    """The script's own."""
    config = folder / "config.json"
    config.write_text(json.dumps({**BASE, **CONFIGS[plan]}))
    return [str(config), str(folder), str(STEPS), failure]


def losses(out: str) -> dict[int, float]:
    """By step."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", out, re.M)}


def to_the_end(pool: Pool, plan: str, folder: Path) -> dict[int, float]:
    """The losses of the script where nothing fails, from the folder's last checkpoint on."""
    ranks = pool.run(script, 2, str(SCRIPT), arguments(plan, folder, "none"), str(folder), timeout=120)
    assert [rank.status for rank in ranks] == [0, 0], ranks
    return losses(ranks[0].out)


@dataclass(frozen=True)
class Run:
    """One start of the script in a folder."""

    start: str
    plan: str
    folder: Path

    def begin(self, failure: str, **variables: str) -> subprocess.Popen[bytes]:
        words = [*STARTS[self.start], str(SCRIPT), *arguments(self.plan, self.folder, failure)]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "DEEPSPEED_LOG_LEVEL": "error"}
        environment.update(variables)
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            return subprocess.Popen(words, stdout=out, stderr=err, env=environment, preexec_fn=heed_ctrl_c)

    def ended(self, failure: str) -> int:
        return self.begin(failure).wait(180)

    @property
    def losses(self) -> dict[int, float]:
        return losses((self.folder / "out").read_text())

    @property
    def said(self) -> str:
        return (self.folder / "err").read_text()


def heed_ctrl_c() -> None:
    """These tests may themselves run where it is ignored: under nohup, say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.02)
    pytest.fail(f"{path.name} didn't come")


@pytest.fixture(scope="module")
def uninterrupted(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, float]]:
    """The losses of a run in which nothing fails, of each plan."""
    found = {plan: to_the_end(pool, plan, tmp_path_factory.mktemp("whole")) for plan in CONFIGS}
    assert [list(each) for each in found.values()] == [list(range(STEPS))] * 2
    return found


@pytest.mark.parametrize(("start", "plan"), [("partita", "pp2"), ("torchrun", "dp2 zero1")])
def test_a_rank_that_is_killed(
    pool: Pool, start: str, plan: str, tmp_path: Path, uninterrupted: dict[str, dict[int, float]]
) -> None:
    run = Run(start, plan, tmp_path)
    started = run.begin("kill")
    ranks: dict[int, psutil.Process] = {}
    while not (tmp_path / "killed").exists() and started.poll() is None:
        ranks.update((child.pid, child) for child in psutil.Process(started.pid).children(recursive=True))
        time.sleep(0.05)
    assert started.wait(180) == 1
    seconds = time.time() - float((tmp_path / "killed").read_text())
    print(f"{start}, {plan}: ended {seconds:.1f} s after the kill")
    assert seconds < GONE_SECONDS
    assert len(ranks) >= 2
    assert psutil.wait_procs(list(ranks.values()), timeout=5)[1] == []
    assert re.search(NAMED[start][0], run.said, re.S)
    assert (tmp_path / "latest").read_text() == "global_step2"
    after = to_the_end(pool, plan, tmp_path)
    assert list(after) == [2, 3, 4, 5]
    assert {**run.losses, **after} == uninterrupted[plan]


MESSAGES = {
    "loader": "LookupError: sample 17 of shard 3 can't be decoded",
    "between": "RuntimeError: the metrics' database is away",
}


@pytest.mark.parametrize(
    ("start", "plan", "failure"), [("partita", "pp2", "loader"), ("torchrun", "dp2 zero1", "between")]
)
def test_an_exception_on_one_rank(start: str, plan: str, failure: str, tmp_path: Path) -> None:
    run = Run(start, plan, tmp_path)
    begun = time.monotonic()
    assert run.ended(failure) == 1
    print(f"{start}, {plan}, {failure}: {time.monotonic() - begun:.1f} s from start to end")
    # In the traceback that the rank's process prints, which torch marks with its number.
    assert re.search(rf"^\[rank1\]: .*{re.escape(MESSAGES[failure])}", run.said, re.M), run.said
    assert re.search(NAMED[start][1], run.said)
    assert len(run.losses) == 3


def test_an_operator_that_fails_on_one_rank(pool: Pool, tmp_path: Path) -> None:
    """In its own words, from the model's code, while the others wait for this rank."""
    message = (
        r"rank 1 of 2: (.|\n)*RuntimeError: Expected tensor for argument #1 'indices' to have one of the following"
    )
    with pytest.raises(RankError, match=message):
        pool.run(script, 2, str(SCRIPT), arguments("dp2 zero1", tmp_path, "dtype"), str(tmp_path), timeout=60)


def test_ctrl_c(tmp_path: Path) -> None:
    """While one rank waits in a collective and the other somewhere else. torchrun ends ranks as after a kill."""
    run = Run("partita", "pp2", tmp_path)
    started = run.begin("wait")
    wait_for(tmp_path / "waits")
    ranks = psutil.Process(started.pid).children(recursive=True)
    assert len(ranks) >= 2
    begun = time.monotonic()
    started.send_signal(signal.SIGINT)
    assert started.wait(60) == 128 + signal.SIGINT
    seconds = time.monotonic() - begun
    print(f"ended {seconds:.1f} s after Ctrl-C")
    assert seconds < 45
    assert psutil.wait_procs(ranks, timeout=5)[1] == []


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    """The others wait as long as the script's own process group does, and no longer."""
    run = Run("partita", "pp2", tmp_path)
    started = run.begin("wait", PATIENCE="12")
    wait_for(tmp_path / "waits")
    begun = time.monotonic()
    assert started.wait(120) == 1
    print(f"ended {time.monotonic() - begun:.1f} s after a rank stopped")
    assert time.monotonic() - begun < GONE_SECONDS
    assert re.search(r"^\[rank0\]: .*Timed out waiting 12000ms", run.said, re.M)
    assert "partita: rank 0 of 2 ended with exit status 1; the other ranks were stopped" in run.said
