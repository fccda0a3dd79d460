"""What is said when ranks don't come to what all of them have to do: by name, and long before a collective gives up."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from partita.adapters.torch.groups import patience_of
from partita.adapters.torch.loop.facade import FacadeError

# After so long others are said to be missing.
PATIENCE_SECONDS = 60.0
# After so long a rank tells that it waits, so that it is not called missing itself.
TOLD_SECONDS = 10.0
LOOK_SECONDS = 2.0
# How often at most a rank that waits asks for the others; a state_dict has them all within milliseconds.
ASK_SECONDS = 0.25
# What one rank has found of all of them.
ALL_CAME = "all"
REASONS = (
    "one of them doesn't make the calls that every rank has to make, in training and in evaluation, or is still "
    "reading the model for a new shape of batch"
)


class Together:
    """One for each loop. Ranks tell each other through the job's store, which works where their collectives are stuck.

    ``group`` has all ranks; it gives the loop a name that is the same on each of them.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.store = dist.PrefixStore(f"partita.{group.group_name}", dist.distributed_c10d._get_default_store())
        self.rank = dist.get_rank()
        self.ranks = range(dist.get_world_size())
        self.patience_seconds = patience_of(torch.device(group._device_types[0])).total_seconds()
        self.entered = self.required = 0
        self.since: float | None = None
        threading.Thread(target=_look, args=(weakref.ref(self),), daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, this rank waits for the others. What it costs is two assignments: a thread looks now and then."""
        self.entered += 1
        self.since = time.monotonic()
        try:
            yield
        finally:
            self.since = None

    def require(self, what: str) -> None:
        """Come together for ``what``. A rank may rightly be late: it is writing a file, say.

        FacadeError where one doesn't come while the job's own group would wait; the same on all that do, however late.
        """
        self.required += 1
        turn = f"required.{self.required}"
        keys = [f"{turn}.{rank}" for rank in self.ranks]
        self.store.set(keys[self.rank], "")
        began = time.monotonic()
        notice = min(PATIENCE_SECONDS, self.patience_seconds)
        come = self._come(keys, began + notice)
        if not come and notice < self.patience_seconds:
            missing = self._missing(keys)
            if missing:
                _say(self.rank, what, missing, "every rank has to call it")
            come = self._come(keys, began + self.patience_seconds)
        found = ALL_CAME if come else " ".join(map(str, self._missing(keys))) or ALL_CAME
        # The first to find decides for all: one that comes in the moment in which others give up doesn't go on alone.
        decided = self.store.compare_set(f"{turn}.found", "", found).decode()
        if decided != ALL_CAME:
            raise FacadeError(
                f"{what} gathers from all ranks; ranks [{', '.join(decided.split())}] didn't call it within "
                f"{self.patience_seconds:g} s. Call it on every rank, and use what it returns on rank 0"
            )

    def _come(self, keys: list[str], until: float) -> bool:
        """Whether all keys are set before ``until``."""
        pause = 0.001
        # Not the store's own wait, which keeps this rank's other threads from the store, and prints that it ended.
        while not self.store.check(keys):
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, ASK_SECONDS)
        return True

    def _missing(self, keys: list[str]) -> list[int]:
        """Ranks whose keys aren't set; the keys are in the order of the ranks."""
        return [rank for rank, key in zip(self.ranks, keys, strict=True) if not self.store.check([key])]


def _look(of: weakref.ref[Together]) -> None:
    """Say once for each wait who isn't there. Ends with what it looks at."""
    told = said = 0
    while True:
        time.sleep(LOOK_SECONDS)
        one = of()
        if one is None or not dist.is_initialized():
            return
        entered, since = one.entered, one.since
        waited = 0.0 if since is None else time.monotonic() - since
        try:
            if waited > TOLD_SECONDS and told < entered:
                told = entered
                one.store.set(f"entered.{entered}.{one.rank}", "")
            if waited > PATIENCE_SECONDS and said < entered:
                said = entered
                missing = one._missing([f"entered.{entered}.{rank}" for rank in one.ranks])
                if missing:
                    _say(one.rank, "a call of the model", missing, REASONS)
        except RuntimeError:
            # The store is gone: so is the job.
            return
        del one


def _say(rank: int, where: str, missing: list[int], why: str) -> None:
    print(
        f"partita: rank {rank} has waited {PATIENCE_SECONDS:g} s in {where} for ranks {missing}: {why}",
        file=sys.stderr, flush=True,
    )  # fmt: skip
