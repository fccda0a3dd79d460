"""``python -m partita.forked RANKS MODULE WORDS …``: begins once what all ranks have in common, then forks them.

Started by ``launch.run_forked``. torch, DeepSpeed and a model's code take a rank many seconds to import, and its model
some more to capture; four ranks would do it four times. A process may be forked safely while it has one thread: so
``MODULE.begin`` computes nothing in parallel and joins no process group.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from partita.errors import PartitaError
from partita.launch import PARENT_DEATH_SIGNAL, adopting, end, heeded, job, place, prctl, signals, watch


class Forked:
    """A child of this process, with what ``launch.Process`` asks for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def wait(self) -> int:
        status = self._ended(0)
        assert status is not None
        return status

    def _ended(self, options: int) -> int | None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status


def main(ranks: int, module: str, words: Sequence[str]) -> int:
    """The exit status: of ``launch.watch``, or in a rank 0. An error before there are ranks is said once."""
    # Until there are ranks to be told, a signal ends this process at once.
    asked = heeded()
    for number in asked:
        signal.signal(number, signal.SIG_DFL)
    _end_with(os.getppid(), signal.SIGTERM)
    try:
        rank = import_module(module).begin(words)
    except PartitaError as error:
        print(f"partita: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    assert threading.active_count() == 1, threading.enumerate()
    # What is there already needn't be looked through by every rank, nor be copied for it.
    gc.freeze()
    with signals() as received, adopting():
        signal.pthread_sigmask(signal.SIG_BLOCK, asked)
        forked = _fork(ranks)
        if forked is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, asked)
            return watch(forked, received)
    if signal.SIGINT in asked:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, asked)
    as_rank(rank)
    return 0


def _fork(ranks: int) -> list[Forked] | None:
    """In this process, the ranks. In each of them, which has its number in its environment: None."""
    variables, parent = job(ranks), os.getpid()
    processes: list[Forked] = []
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(ranks):
            pid = os.fork()
            if not pid:
                os.setpgid(0, 0)
                _end_with(parent, signal.SIGKILL)
                os.environ.update(variables, **place(rank))
                _name(f"rank {rank}")
                return None
            processes.append(Forked(pid))
    except OSError:
        end(processes)
        raise
    return processes


def _end_with(parent: int, number: signal.Signals) -> None:
    """This process is sent the signal when its parent ends, also where it has ended since."""
    prctl(PARENT_DEATH_SIGNAL, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _name(name: str) -> None:
    """As ps and top show it: the command line is the same for all."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def as_rank(work: Callable[[], None]) -> None:
    """Do a rank's work; a PartitaError is said with its number, and ends this process with the error's status."""
    try:
        work()
    except PartitaError as error:
        print(f"rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
