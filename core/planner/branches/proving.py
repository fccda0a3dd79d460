"""The bound of all tables together, and the candidates that turn up on the way (``proof``).

Each family, number of micro-batches and depth is asked for stages under the limit: the best so far, less what is left
open. Rounds go from few labels to many, so that what is easy comes first. A candidate that the formula finds better
lowers the limit, and one that it doesn't lowers what can be proven.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partita.planner.branches.labels import FOUND, NONE
from partita.planner.branches.proof import Candidate, Proof
from partita.planner.branches.sets import Sets
from partita.planner.joint.engine import DEPTHS
from partita.planner.joint.space import Family

# What is left open under the best, and below a candidate.
OPEN, STEP = 5e-3, 2e-3
# Labels of a search and the grid of its times, round by round: a coarse one proves in little work what is far above the
# limit. Where a round doesn't come to its end, a limit of so many shares of it is tried.
ROUNDS = ((4_096, 1e-2), (16_384, 3e-3), (65_536, 1e-3), (262_144, 3e-4), (2_097_152, 1e-4))
FINE, SHARES = 1e-3, (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)
# The work of a search that ends at once; sets of all tables that are kept.
BEGIN, KEPT = 20_000, 100_000
# Seconds of a family and number of micro-batches, better or worse, with the stages of a candidate.
Judge = Callable[[Family, int, Candidate], float]


@dataclass
class _Task:
    """A table with a depth, and what none of its stages go under."""

    bound: float
    family: Family
    micro_batches: int
    depth: int


class Prover:
    """The proof for all tables, as far as an amount of work goes."""

    def __init__(self, sets: Sets, tables: Sequence[tuple[float, Family, int]], work: int, deadline: float):
        self.sets, self.work, self.deadline = sets, work, deadline
        self.proofs: dict[tuple[Family, int], Proof] = {}
        self.tasks = [
            _Task(least, family, count, depth)
            for least, family, count in tables for depth in (DEPTHS[::-1] if count > 1 else DEPTHS[:1])
        ]  # fmt: skip

    def bound(self, below: float, judge: Judge) -> float:
        """What no stages take less than; ``below``: the best that is known."""
        self.limit = below * (1 - OPEN)
        self.best, self.judge = below, judge
        for most, grid in ROUNDS:
            self._round(most, grid)
        return min([self.limit, *(task.bound for task in self.tasks)])

    def _round(self, most: int, grid: float) -> None:
        """Asks all that are open, up to so many labels each; where the limit takes more, under a smaller one."""
        for task in sorted(self.tasks, key=lambda one: one.bound):
            shares = iter(SHARES)
            share = next(shares)
            while task.bound < (limit := share * self.limit) and self.work > 0 and time.monotonic() < self.deadline:
                outcome, candidates, work = self._proof(task).find(task.depth, limit, most, grid)
                self.work -= work + BEGIN
                if outcome == NONE:
                    task.bound = limit
                    break
                best = self.best
                for candidate in candidates:
                    self.best = min(self.best, self.judge(task.family, task.micro_batches, candidate))
                self.limit = min(self.limit, self.best * (1 - OPEN))
                if outcome == FOUND and grid <= FINE:
                    # With what comes once a step a candidate may take more than the limit, too.
                    self.limit = min(self.limit, min(candidates[0].seconds, limit) * (1 - STEP))
                elif self.best == best and (share := next(shares, 0.0)) == 0.0:
                    break

    def _proof(self, task: _Task) -> Proof:
        """A task's table; some are kept for other depths, limits and rounds."""
        key = task.family, task.micro_batches
        if key not in self.proofs:
            if len(self.proofs) > KEPT // len(self.sets.ideals):
                self.proofs.clear()
            self.proofs[key] = Proof(self.sets, *key)
        return self.proofs[key]
