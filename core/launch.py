"""Start one process a rank on this machine and wait for them. When one fails, all end: nobody waits for who is gone.

Each rank leads a process group of its own, so that what it started (the workers of a data loader, say) ends with it,
even where the rank itself was killed. The price: ranks read nothing from the terminal.

A user's own script runs in processes that know nothing of each other (``run_ranks``): what it sets before it imports
torch must hold. Ranks that run Partita's own code are forked from one process, which has imported and computed what
they have in common (``run_forked``, and ``forked.py`` for that process).
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from partita.errors import PartitaError

# How long ranks that were asked to end may take, before they are made to.
END_SECONDS = 5.0
# The rank that ends first is blamed. Its peers notice within some hundredths of a second.
LOOK_SECONDS = 0.02

# Of Linux's prctl.
PARENT_DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Of drivers of GPUs: NVIDIA's (a container may have any of its devices), Windows' for Linux, AMD's.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


class Process(Protocol):
    """A child of this process, as ``subprocess.Popen`` has it: a status below 0 is a signal's."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


Processes = Sequence[Process]


def run_ranks(command: Sequence[str], ranks: int, environment: Mapping[str, str]) -> int:
    """Run the command ``ranks`` times, with the variables by which torch.distributed finds the others.

    The exit status: 0, or that of the rank that failed first (1 where a signal ended it), which is named on stderr; 143
    after SIGTERM and 129 after SIGHUP. SIGINT is raised as KeyboardInterrupt, once the ranks have ended. In none of
    these cases is a process left behind.
    """
    shared = {**environment, **job(ranks)}
    with signals() as received, adopting():
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                own = {**shared, **place(rank)}
                processes.append(subprocess.Popen(list(command), env=own, stdin=subprocess.DEVNULL, process_group=0))
            status = watch(processes, received)
        except BaseException:
            end(processes)
            raise
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    return status


def run_forked(module: str, words: Sequence[str], ranks: int, environment: Mapping[str, str]) -> int:
    """As ``run_ranks`` of ``python -m MODULE WORDS``; what all ranks have in common is done once, and they are forked.

    ``MODULE.begin(words)`` does what is the same on every rank, and returns what a rank does. Where a process that has
    imported torch can't be forked, each rank begins by itself. No rank outlives this process, whatever ends it.
    """
    if not forkable():
        return run_ranks([sys.executable, "-m", module, *words], ranks, environment)
    command = [sys.executable, "-m", "partita.forked", str(ranks), module, *words]
    # Threads that compute would be missing in a process that is forked: ranks say how many they want.
    own = {**environment, "OMP_NUM_THREADS": "1"}
    with signals() as received:
        # It tells the ranks itself: nothing that the terminal sends reaches it.
        parent = subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, process_group=0)
        while parent.poll() is None and not received:
            time.sleep(LOOK_SECONDS)
        if received:
            parent.send_signal(received[0])
        status = parent.wait()
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    if received:
        return 128 + received[0]
    if status < 0:
        how = signal.Signals(-status).name
        print(f"partita: the process that forks the ranks was killed by {how}, they ended with it", file=sys.stderr)
    return status if status >= 0 else 1


def forkable() -> bool:
    """CUDA that has been asked anything doesn't survive a fork, and imports ask it; nor do macOS's libraries."""
    return sys.platform == "linux" and not any(map(os.path.exists, DRIVERS))


def job(ranks: int) -> dict[str, str]:
    """The variables of all ranks by which torch.distributed finds the others."""
    count = str(ranks)
    return {
        "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())
    }  # fmt: skip


def place(rank: int) -> dict[str, str]:
    """The variables of one rank."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank)}


@contextmanager
def signals() -> Iterator[list[int]]:
    """The signals that ask this process to end, in the order in which they came; they interrupt nothing.

    An exception out of a handler could come between the start of a rank and its entry in the list, or while ranks are
    being ended. What the process ignores (SIGHUP under nohup) it goes on to ignore.
    """
    received: list[int] = []
    asked = heeded()
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in asked}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def adopting() -> Iterator[None]:
    """What ranks leave behind becomes this process's child: init may take seconds to see that it has ended."""
    prctl(CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(CHILD_SUBREAPER, 0)


def prctl(option: int, value: int) -> None:
    """Of Linux; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def heeded() -> list[signal.Signals]:
    """Of the signals that ask a process to end, those that this one doesn't ignore."""
    return [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def watch(processes: Processes, received: Sequence[int]) -> int:
    """Until all ranks have ended: 0; or one has failed, or this process received a signal: then all are ended."""
    status = _wait(processes, received)
    if status:
        end(processes)
    return status


def _wait(processes: Processes, received: Sequence[int]) -> int:
    while not received:
        ended = {rank: status for rank, process in enumerate(processes) if (status := process.poll()) is not None}
        failed = {rank: status for rank, status in ended.items() if status}
        if failed:
            # A rank that was killed, or that says what is wrong, comes before those that lost their peer by it.
            rank = min(failed, key=lambda rank: (failed[rank] >= 0, failed[rank] != PartitaError.exit_status, rank))
            status = failed[rank]
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
            others = "" if len(processes) == 1 else "; the other ranks were stopped"
            print(f"partita: rank {rank} of {len(processes)} {how}{others}", file=sys.stderr, flush=True)
            return status if status > 0 else 1
        if len(ended) == len(processes):
            return 0
        time.sleep(LOOK_SECONDS)
    return 128 + received[0]


def end(processes: Processes) -> None:
    """Ask every rank, and what it started, to end; after a while they are killed."""
    _send(processes, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while _send(processes, 0) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    _send(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def _send(processes: Processes, number: int) -> bool:
    """Send a signal to the ranks' groups; whether any of them still has a process."""
    left = False
    for process in processes:
        # A rank that has ended and wasn't waited for would count as alive.
        if process.poll() is not None:
            if _exists(process.pid):
                # No process is given the id of a group that is left: the rank's group is gone, and the id is another's.
                continue
            _reap(process.pid)
        # Whatever can't be signalled, the ranks after it are.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
            left = True
    return left


def _reap(group: int) -> None:
    """Wait for those of the group that have ended and are this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def quiet_environment() -> dict[str, str]:
    """Of children: one thread a rank unless told otherwise, no start-up chatter of the frameworks."""
    quiet = {"OMP_NUM_THREADS": "1", "DEEPSPEED_LOG_LEVEL": "error", "PYTHONWARNINGS": "ignore"}
    if not any(map(os.path.exists, DRIVERS)):
        quiet["DS_ACCELERATOR"] = "cpu"
    return {**quiet, **os.environ}
