"""What is said when ranks don't come to what all of them have to do: by name, and long before a collective gives up."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from partita.adapters.torch.loop.facade import FacadeError

# After so long others are said to be missing.
PATIENCE_SECONDS = 60.0
# After so long a rank tells that it waits, so that it is not called missing itself.
TOLD_SECONDS = 10.0
LOOK_SECONDS = 2.0


class Together:
    """One for each loop. Ranks tell each other through the job's store, which works where their collectives are stuck.

    ``group`` has all ranks; it gives the loop a name that is the same on each of them.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.store = dist.PrefixStore(f"partita.{group.group_name}", dist.distributed_c10d._get_default_store())
        self.rank = dist.get_rank()
        self.ranks = range(dist.get_world_size())
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
        """Come together for ``what``. FacadeError where some rank doesn't come within ``PATIENCE_SECONDS``."""
        self.required += 1
        keys = [f"required.{self.required}.{rank}" for rank in self.ranks]
        self.store.set(keys[self.rank], "")
        try:
            self.store.wait(keys, timedelta(seconds=PATIENCE_SECONDS))
        except RuntimeError:
            missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            raise FacadeError(
                f"{what} gathers from all ranks; ranks {missing} didn't call it within {PATIENCE_SECONDS:g} s. Call it "
                "on every rank, and use what it returns on rank 0"
            ) from None


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
                missing = [rank for rank in one.ranks if not one.store.check([f"entered.{entered}.{rank}"])]
                if missing:
                    _say(one.rank, missing)
        except RuntimeError:
            # The store is gone: so is the job.
            return
        del one


def _say(rank: int, missing: list[int]) -> None:
    print(
        f"partita: rank {rank} has waited {PATIENCE_SECONDS:g} s in a call of the model for ranks {missing}: every "
        "rank has to make the same calls, in training and in evaluation", file=sys.stderr, flush=True,
    )  # fmt: skip
