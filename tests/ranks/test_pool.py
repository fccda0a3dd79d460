"""The pool itself: answers, failures, hangs, deaths, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.ranks.pool import Pool, RankError, RankTimeout

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def total(value: int) -> tuple[int, int, int]:
    import torch
    import torch.distributed as dist

    mine = torch.tensor(value * 10 ** dist.get_rank())
    dist.all_reduce(mine)
    return dist.get_rank(), dist.get_world_size(), int(mine)


def process() -> int:
    return os.getpid()


def fail_on(bad: int) -> None:
    import torch.distributed as dist

    if dist.get_rank() == bad:
        raise ValueError("the rank's own words")
    dist.barrier()


def wait_for_nobody() -> None:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)
    else:
        time.sleep(600)


def die() -> None:
    os._exit(7)


def make_a_lambda() -> object:
    return lambda: None


@pytest.mark.parametrize(("n", "sum_"), [(1, 3), (2, 33), (3, 333), (4, 3333)])
def test_every_rank_answers_in_a_group_of_its_own(pool: Pool, n: int, sum_: int) -> None:
    assert pool.run(total, n, 3) == [(rank, n, sum_) for rank in range(n)]


def test_processes_stay_alive(pool: Pool) -> None:
    first = pool.run(process, 4)
    assert pool.run(process, 4) == first
    more = pool.run(process, 6)
    assert more[:4] == first
    assert len({*more}) == 6
    assert pool.run(total, 6, 1)[5] == (5, 6, 111111)


def test_failures_name_the_rank_and_the_next_call_works() -> None:
    own = Pool()
    try:
        first = own.run(process, 4)
        with pytest.raises(RankError, match=r"rank 1 of 3: (.|\n)*in fail_on(.|\n)*the rank's own words"):
            own.run(fail_on, 3, 1)
        second = own.run(process, 4)
        assert not {*first} & {*second}
        assert not any(psutil.pid_exists(pid) for pid in first)
        with pytest.raises(
            RankTimeout, match=r"2 of 2 (.|\n)*rank 0:(.|\n)*wait_for_no(.|\n)*rank 1:(.|\n)*wait_for_no"
        ):
            own.run(wait_for_nobody, 2, timeout=1.0)
        with pytest.raises(RankError, match="died with exit code 7"):
            own.run(die, 1)
        with pytest.raises(RankError, match=r"make_a_lambda"):
            own.run(make_a_lambda, 1)
        assert own.run(total, 2, 1) == [(0, 2, 11), (1, 2, 11)]
        last = own.run(process, 4)
    finally:
        own.close()
    assert not any(psutil.pid_exists(pid) for pid in last)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, end: signal.Signals) -> None:
    """A run of pytest from another folder, ended while its ranks hang in a collective."""
    started = tmp_path / "started"
    test = tmp_path / "test_hang.py"
    test.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.ranks.pool import Pool\n"
        "from tests.ranks.test_pool import process, wait_for_nobody\n"
        "def test_hang():\n"
        "    pool = Pool(frameworks=False)\n"
        f"    open({str(started)!r}, 'w').write(' '.join(map(str, pool.run(process, 4))) + '.')\n"
        "    pool.run(wait_for_nobody, 4, timeout=600)\n"
    )
    tests = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(test)], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        # These tests may themselves run where Ctrl-C is ignored: under nohup, say.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        wait_until(lambda: started.exists() and started.read_text().endswith("."), 120)
        family = psutil.Process(tests.pid).children(recursive=True)
        assert {int(pid) for pid in started.read_text()[:-1].split()} <= {child.pid for child in family}
        os.kill(tests.pid, end)
        tests.communicate(timeout=30)
        wait_until(lambda: not any(runs(child) for child in family), 20)
    finally:
        if tests.poll() is None:
            os.killpg(tests.pid, signal.SIGKILL)


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"still not so after {seconds} seconds"
        time.sleep(0.1)
