"""The bound of all tables together, and the candidates that turn up on the way (``proof``).

Each family and number of micro-batches is asked for stages under the limit: the best so far, less what is left open.
All are asked with few labels first, so that what is easy comes soon; then again and again the one whose bound is the
least, under a smaller limit where the labels ran out, and with more of them where no much smaller one is left. A
candidate that the formula finds better lowers the limit, and one that it doesn't lowers what can be proven.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from partita.planner.branches.labels import FOUND, NONE, STOPPED
from partita.planner.branches.proof import Candidate, Proof
from partita.planner.branches.sets import Sets
from partita.planner.joint.engine import DEPTHS
from partita.planner.joint.space import Family


class Level(NamedTuple):
    """Labels of a search, the grid of its times, and how many stand for all of a set and units (0: all)."""

    most: int
    grid: float
    joining: int = 0


# What is left open under the best, and below a candidate.
OPEN, STEP = 5e-3, 2e-3
# A coarse one proves in little work what is far above the limit, and few labels for all of a set nearly all the rest.
LEVELS = (
    Level(4_096, 1e-2), Level(2_097_152, 1e-3, 1), Level(2_097_152, 1e-3, 16), Level(16_384, 3e-3), Level(65_536, 1e-3),
    Level(262_144, 1e-3), Level(1_048_576, 1e-3), Level(2_097_152, 3e-4),
)  # fmt: skip
# Where the labels run out, a limit half-way to the bound is tried, until they are so close, and so often.
CLOSE, TRIES = 0.02, 2
# Parts of what the step's end takes that are asked for before what all readers take of a port is.
NARROW = 0.05
# Candidates on a coarser grid may be none on a finer one.
FINE = 1e-3
# The work of a search that ends at once; sets of all tables that are kept.
BEGIN, KEPT = 20_000, 100_000
# Pairs of sets that are as much work as a step; and which part of the work may go into that for one table.
PAIRS, SHARE = 32, 20
# Seconds of a family and number of micro-batches, better or worse, with the stages of a candidate.
Judge = Callable[[Family, int, Candidate], float]


@dataclass(eq=False)
class _Task:
    """A table with some depths and times of the step's end, what none of its stages go under, and the least limit at
    which its level didn't prove that."""

    bound: float
    family: Family
    micro_batches: int
    depths: tuple[int, ...]
    sync: tuple[float, float] = (-1.0, inf)
    sharing: bool = False
    level: int = 0
    failed: float = inf
    tries: int = 0


class Prover:
    """The proof for all tables, as far as an amount of work goes."""

    def __init__(self, sets: Sets, tables: Sequence[tuple[float, Family, int]], work: int, deadline: float):
        self.sets, self.work, self.deadline = sets, work, deadline
        self.proofs: dict[tuple[Family, int], Proof] = {}
        # What it takes to go through the sets from the back, for one table.
        self.back = len(sets.ideals) ** 2 // PAIRS
        self.goes_back = self.back <= work // SHARE
        self.tasks = [
            # Stages that hold all micro-batches have no longer warm-up.
            _Task(least, family, count, DEPTHS[: max(1, count - 1)])
            for least, family, count in tables
        ]

    def bound(self, below: float, judge: Judge) -> float:
        """What no stages take less than; ``below``: the best that is known."""
        self.limit = below * (1 - OPEN)
        self.best, self.judge = below, judge
        for task in sorted(self.tasks, key=lambda one: one.bound):
            self._ask(task)
        while self.tasks:
            task = min(self.tasks, key=lambda one: one.bound)
            if task.level == len(LEVELS) or not self._ask(task):
                break
        return min([self.limit, *(task.bound for task in self.tasks)])

    def _ask(self, task: _Task) -> bool:
        """Asks for stages of a table once; whether there was something to ask, and time for it."""
        if task.bound >= self.limit or self.work <= 0 or time.monotonic() > self.deadline:
            return False
        level = LEVELS[task.level]
        limit = self.limit
        # Far below is proven in far less work.
        if task.failed <= limit or (level.joining and limit - task.bound > CLOSE * limit):
            limit = (task.bound + min(task.failed, limit)) / 2
        outcome, candidates, work = self._proof(task).find(
            task.depths, limit, *level, sync=task.sync, sharing=task.sharing, work=self.work
        )
        self.work -= work + BEGIN
        if outcome == NONE:
            task.bound = limit
            return True
        best = self.best
        for candidate in candidates:
            self.best = min(self.best, self.judge(task.family, task.micro_batches, candidate))
        self.limit = min(self.limit, self.best * (1 - OPEN))
        vain = outcome == FOUND and self.best == best
        fine = vain and level.grid <= FINE and not level.joining
        if fine and self._split(task):
            return True
        if vain or outcome == STOPPED:
            task.failed, task.tries = limit, task.tries + 1
        if fine:
            if task.failed - task.bound < STEP * self.limit:
                # Labels leave out what keeps a candidate from being as good as they say.
                task.level = len(LEVELS)
        elif task.failed - task.bound < CLOSE * self.limit or (not level.joining and (vain or task.tries == TRIES)):
            task.level, task.failed, task.tries = task.level + 1, inf, 0
        return True

    def _split(self, task: _Task) -> bool:
        """Asks for each depth by itself, then for parts of what the step's end may take, then with what all readers
        take of a port, then for smaller parts: where a candidate isn't as good as its labels say, these may have been
        too hopeful of each."""
        proof, fresh = self._proof(task), replace(task, failed=inf, tries=0)
        least, most = max(task.sync[0], proof.least_sync), min(task.sync[1], proof.most_sync, self.limit)
        if len(task.depths) > 1:
            parts = [replace(fresh, depths=(depth,)) for depth in task.depths]
        elif most - least >= (STEP if task.sharing else NARROW) * self.limit:
            half = (least + most) / 2
            parts = [replace(fresh, sync=sync) for sync in ((task.sync[0], half), (half, task.sync[1]))]
        elif not task.sharing:
            parts = [replace(fresh, sharing=True)]
        else:
            return False
        self.tasks.remove(task)
        self.tasks += parts
        return True

    def _proof(self, task: _Task) -> Proof:
        """A task's table; some are kept for other depths, limits and levels."""
        key = task.family, task.micro_batches
        if key not in self.proofs:
            if len(self.proofs) > KEPT // len(self.sets.ideals):
                self.proofs.clear()
            self.proofs[key] = Proof(self.sets, *key, self.goes_back)
            self.work -= self.back if self.goes_back else 0
        return self.proofs[key]
