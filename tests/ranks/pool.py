"""Live processes on which tests run functions as ranks of a real process group: four, and more where a test wants them.

They are forked from a server that has imported torch and the models once, so starting them again after a failure takes
a moment. Every call is a process group of its own, made and destroyed with it. A rank that raises, dies or hangs fails
the call with what it was doing, and takes the whole pool with it: nobody is left waiting for a rank that is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from tests.ranks.rank import serve

# At once, and at most.
FIRST, RANKS = 4, 8
START_SECONDS = 200.0
END_SECONDS = 5.0
# After one rank failed, how long the others may take to fail too: a second traceback often says more than the first.
GRACE_SECONDS = 3.0
PRELOADED = [
    "torch", "torch.export", "torch.distributed", "partita.adapters.torch.prepare",
    "transformers.models.gpt2.modeling_gpt2", "tests.ranks.captures",
]  # fmt: skip
# What takes longer, for all that ranks are asked to run: the last ones DeepSpeed imports where an engine is made.
FRAMEWORKS = [
    *(f"transformers.models.{family}.modeling_{family}" for family in ("llama", "bert", "t5", "vit", "swin")),
    "deepspeed", "partita.adapters.deepspeed.front", "accelerate", "transformers.trainer", "tests.ranks.warm",
    "partita.ranking", "deepspeed.ops.op_builder.all_ops", "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer", "deepspeed.runtime.superoffload.superoffload_stage3",
]  # fmt: skip


class RankError(Exception):
    """A rank raised or died; the message has the traceback of every rank that did."""


class RankTimeout(RankError):
    """The ranks did not end in time; the message has the Python stacks of all of them."""


class Rank(NamedTuple):
    """One process, the pipe to it, and the file that its stacks are written to."""

    process: BaseProcess
    pipe: Connection
    stacks: Path


class Pool:
    """``run`` is all there is to it. Nothing is started before the first run, nothing is left after ``close``.

    ``captures``: a folder for what ranks capture, which stays; without it they have one of their own. ``frameworks``:
    whether the server imports them before it forks, or ranks that need them do.
    """

    def __init__(self, size: int = RANKS, captures: Path | None = None, frameworks: bool = True) -> None:
        self.preloaded = [*PRELOADED, *(FRAMEWORKS if frameworks else ())]
        self.size = size
        self.ranks: list[Rank] = []
        self.folder: Path | None = None
        # What has been captured outlives the ranks: after a failure the next ones read it too.
        self.captures, self.lent = captures, captures is not None
        self.calls = 0

    def run(self, function: Callable[..., Any], n: int, *args: Any, timeout: float = 60.0) -> list[Any]:
        """``function(*args)`` on ranks 0 … n-1 of a fresh gloo group: what each returned, in order of rank.

        The function stands in a module, at its top level. RankError when a rank raises or dies, RankTimeout after
        ``timeout`` seconds; either way the next run gets new processes.
        """
        assert 1 <= n <= self.size, f"the pool has {self.size} ranks, {n} are wanted"
        try:
            self._start(n)
            self.calls += 1
            assert self.folder is not None
            message = pickle.dumps((n, str(self.folder / f"store.{self.calls}"), function, args))
            for rank in self.ranks[:n]:
                rank.pipe.send_bytes(message)
            return self._answers(n, timeout)
        except BaseException:
            # Also Ctrl-C and a test's own time limit: the ranks are in the middle of something.
            self._kill()
            raise

    def close(self) -> None:
        """End all processes; the next run starts new ones."""
        for rank in self.ranks:
            rank.pipe.close()
        for rank in self.ranks:
            rank.process.join(END_SECONDS)
        self._kill()
        if self.captures is not None and not self.lent:
            shutil.rmtree(self.captures, ignore_errors=True)
            self.captures = None

    def _kill(self) -> None:
        for rank in self.ranks:
            rank.process.kill()
        for rank in self.ranks:
            rank.process.join()
            rank.pipe.close()
        self.ranks = []
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def _start(self, n: int) -> None:
        """Start what is missing of ``n`` ranks."""
        there, wanted = len(self.ranks), max(n, min(FIRST, self.size))
        if there >= wanted:
            return
        self.folder = self.folder or Path(tempfile.mkdtemp(prefix="ranks."))
        self.captures = self.captures or Path(tempfile.mkdtemp(prefix="captures."))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(self.preloaded)
        before = os.environ.get("OMP_NUM_THREADS")
        # Read by the server when it imports torch: a process that is to be forked must have one thread.
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            for rank in range(there, wanted):
                ours, theirs = context.Pipe()
                stacks = self.folder / f"stacks.{rank}"
                process = context.Process(
                    target=serve, args=(theirs, rank, stacks, self.captures), name=f"rank {rank}", daemon=True
                )
                process.start()
                theirs.close()
                self.ranks.append(Rank(process, ours, stacks))
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = before
        self._answers(wanted, START_SECONDS, there)

    def _answers(self, n: int, timeout: float, first: int = 0) -> list[Any]:
        """One answer of each of the ranks from ``first`` on to the ``n``-th."""
        waiting: dict[Any, int] = {self.ranks[index].pipe: index for index in range(first, n)}
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        deadline = time.monotonic() + timeout
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready and not failures:
                raise RankTimeout(f"{len(waiting)} of {n} ranks did not end in {timeout:g} seconds\n{self._stacks(n)}")
            if not ready:
                break
            for pipe in ready:
                index = waiting.pop(pipe)
                good, value = self._read(index)
                if good:
                    results[index] = value
                else:
                    failures[index] = value
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if failures:
            raise RankError("\n".join(f"rank {index} of {n}: {text}" for index, text in failures.items()))
        return [results[index] for index in range(first, n)]

    def _read(self, index: int) -> tuple[bool, Any]:
        rank = self.ranks[index]
        try:
            good, value = pickle.loads(rank.pipe.recv_bytes())
            return good, value
        except (EOFError, ConnectionResetError):
            rank.process.join(5)
            return False, f"died with exit code {rank.process.exitcode}\n{rank.stacks.read_text()}"

    def _stacks(self, n: int) -> str:
        """What every rank is doing, asked by a signal that is answered even inside a call that blocks."""
        for rank in self.ranks[:n]:
            if rank.process.is_alive() and rank.process.pid is not None:
                os.kill(rank.process.pid, signal.SIGUSR1)
        sizes: list[int] = []
        for _ in range(20):
            time.sleep(0.1)
            before, sizes = sizes, [rank.stacks.stat().st_size for rank in self.ranks[:n]]
            if sizes == before and all(sizes):
                break
        return "\n".join(f"rank {i}:\n{rank.stacks.read_text()}" for i, rank in enumerate(self.ranks[:n]))
