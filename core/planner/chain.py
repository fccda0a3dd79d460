"""The exact search over cuts: numbers in, bounds out. Knows nothing of graphs, clusters or strategies.

The formula is a sum plus (c − 1) times maxima plus a maximum. A dynamic programme finds the least sum among the cuts
whose maxima stay under given limits; a branch and bound over the limits does the rest. After a solution with maxima
(m1, m2, m3), whatever is better has a sum that is no smaller, so at least one of its maxima is smaller: three
branches, cut off by bounds. The cycle term of 1F1B depends on the sum from a stage to the end, which the programme
(from the last stage back) makes as small as it can: the least sum satisfies every limit that any sum satisfies.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from partita.planner.formula import ChainTable, Terms, segments, terms

# Sums of floats differ in their last digits with the order of addition; a gain smaller than this is none.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Cutting:
    """The best cuts of a table: ``bounds[s]`` is the first block of stage s, the last bound is n."""

    bounds: tuple[int, ...]
    seconds: float
    terms: Terms


@dataclass(frozen=True)
class _Box:
    """What is left to search: exclusive upper limits of the three maxima, lower bounds of them and of the sum."""

    limits: tuple[float, float, float]
    least: tuple[float, float, float]
    total: float


def best_cuts(table: ChainTable, below: float = inf) -> Cutting | None:
    """The cuts with the least step time, if one exists that fits the memory and takes less than ``below`` seconds."""
    if table.stages > table.blocks:
        return None
    grid = _Grid(table)
    weight = float(table.micro_batches - 1)
    weights = (weight, weight, 1.0)
    best: Cutting | None = None
    boxes = [_Box((inf, inf, inf), _least(table), 0.0)]
    while boxes:
        box = boxes.pop()
        floor = box.total + sum(w * m for w, m in zip(weights, box.least, strict=True))
        if floor >= below * (1 - TOLERANCE):
            continue
        room = below - floor
        limits = [
            min(limit, (m + room / w) * (1 + TOLERANCE)) if w else limit
            for limit, m, w in zip(box.limits, box.least, weights, strict=True)
        ]
        bounds = grid.least_sum(limits)
        if bounds is None:
            continue
        found = terms(table, bounds)
        if (seconds := found.step_seconds(table.micro_batches)) < below:
            best, below = Cutting(bounds, seconds, found), seconds
        reached = (found.slowest, found.slowest_backward, found.sync)
        total = max(box.total, found.total * (1 - TOLERANCE))
        least = list(box.least)
        for k, value in enumerate(reached):
            if least[k] < value and weights[k]:
                limit = tuple(min(value, box.limits[k]) if m == k else box.limits[m] for m in range(3))
                boxes.append(_Box((limit[0], limit[1], limit[2]), (least[0], least[1], least[2]), total))
            least[k] = max(least[k], value)
    return _evened(grid, best) if best else None


def _evened(grid: _Grid, best: Cutting) -> Cutting:
    """The most even of the cuts that are as good as the best."""
    found = best.terms
    limits = [float(np.nextafter(m, inf)) for m in (found.slowest, found.slowest_backward, found.sync)]
    bounds = grid.least_sum(limits, even=True)
    if bounds is None:
        return best
    found = terms(grid.table, bounds)
    seconds = found.step_seconds(grid.table.micro_batches)
    return Cutting(bounds, seconds, found) if seconds <= best.seconds * (1 + TOLERANCE) else best


def _least(table: ChainTable) -> tuple[float, float, float]:
    """Lower bounds of the three maxima: the largest block, and an even share of all."""
    f, b, s = table.forward, table.backward, table.stages
    end = float(table.sync[np.triu_indices(table.blocks + 1, 1)].min())
    if table.schedule == "gpipe":
        return _share(f, s), _share(b, s), end
    return _share(f + b, s), 0.0, end


def _share(values: np.ndarray, stages: int) -> float:
    return max(float(values.max()), float(values.sum()) / stages) * (1 - TOLERANCE)


class _Grid:
    """The table's segments as matrices, computed once for all limits."""

    def __init__(self, table: ChainTable):
        self.table = table
        self.forward = segments(table.forward)
        self.backward = segments(table.backward)
        self.cost = self.forward + self.backward
        real = np.isfinite(self.cost)
        self.fits = {w: real & self._fits(w) for w in sorted(set(table.held))}
        self.transfer = table.transfer_forward + table.transfer_backward

    def _fits(self, held: int) -> np.ndarray:
        return self.table.fixed_bytes + held * self.table.held_bytes <= self.table.memory_limit

    def least_sum(self, limits: list[float], even: bool = False) -> tuple[int, ...] | None:
        """Bounds with the least Σ among those whose maxima are all under the limits, or None.

        ``even``: of several such, the one with the least Σ p², so that 30 equal blocks on 4 stages are 8, 8, 7, 7 and
        not 8, 8, 8, 6.
        """
        table, n = self.table, self.table.blocks
        inside = table.sync < limits[2]
        if table.schedule == "gpipe":
            inside &= (self.forward < limits[0]) & (self.backward < limits[1])
        else:
            inside &= self.cost < limits[0]
        allowed = {held: inside & fits for held, fits in self.fits.items()}
        sums = np.full(n + 1, inf)
        sums[n] = 0.0
        squares = np.zeros(n + 1)
        rows = np.arange(n + 1)
        choices = []
        for stage in reversed(range(table.stages)):
            after = sums if stage == table.stages - 1 else sums + self._boundary(stage, limits)
            options = np.where(allowed[table.held[stage]], self.cost + after[None, :], inf)
            choice = options.argmin(axis=1)
            sums = options[rows, choice]
            if even:
                spread = self.cost**2 + (squares[None, :] if stage < table.stages - 1 else 0.0)
                ties = options <= (sums * (1 + TOLERANCE))[:, None]
                choice = np.where(ties & np.isfinite(options), spread, inf).argmin(axis=1)
                sums, squares = options[rows, choice], spread[rows, choice]
            if table.cycle[stage] < inf:
                sums = np.where(sums / table.cycle[stage] < limits[0], sums, inf)
            choices.append(choice)
        if not np.isfinite(sums[0]):
            return None
        bounds = [0]
        for choice in reversed(choices):
            bounds.append(int(choice[bounds[-1]]))
        return tuple(bounds)

    def _boundary(self, stage: int, limits: list[float]) -> np.ndarray:
        """The transfer after the stage at every cut, infinite where it exceeds a limit."""
        table = self.table
        if table.schedule == "gpipe":
            inside = (table.transfer_forward[stage] < limits[0]) & (table.transfer_backward[stage] < limits[1])
        else:
            inside = self.transfer[stage] < limits[0]
        return np.where(inside, self.transfer[stage], inf)


def least_memory(table: ChainTable) -> tuple[float, tuple[int, ...]] | None:
    """The smallest limit that some cuts fit (bytes of the heaviest stage) and those cuts; None if S > n."""
    if table.stages > table.blocks:
        return None
    n = table.blocks
    real = np.triu(np.ones((n + 1, n + 1), dtype=bool), 1)
    heaviest = np.full(n + 1, inf)
    heaviest[n] = 0.0
    choices = []
    for stage in reversed(range(table.stages)):
        options = np.where(real, np.maximum(table.memory(stage), heaviest[None, :]), inf)
        choice = options.argmin(axis=1)
        heaviest = options[np.arange(n + 1), choice]
        choices.append(choice)
    bounds = [0]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1]]))
    return float(heaviest[0]), tuple(bounds)
