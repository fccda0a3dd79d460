"""Bounds of a family with one number of micro-batches, from sums over blocks alone: most of them need no search.

A plan takes at least Σp + max_i [(c − 1) · p_i + s_i], in which each block may take the shape and the option that are
best for it. A maximum is no less than any weighted mean: with stage i's share u_i / U of the devices as its weight that
is Σp_i + Σ (u_i / U) · [(c − 1) · p_i + s_i], a sum over blocks. Where the S stages have equally many devices it is no
less than the evenest division of the blocks into S either. Bytes join both by Lagrange's λ: what a stage has beyond the
limit is less than nothing, Σ u_i · (bytes_i − limit) ≤ 0, a block counted with one micro-batch in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from partita.planner.joint.compiled import compiled
from partita.planner.joint.table import Prices

# Values of λ that are tried, in parts of the seconds without it over the bytes of all devices.
SLOPES = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
# Sums in another order.
ROUNDING = 1e-9
# Halvings of the interval in which the evenest division lies.
HALVINGS = 30


@dataclass(frozen=True)
class Sorts:
    """The blocks of one sort have the same prices: ``of`` each block [n] its sort, the ``first`` of each [R]."""

    of: np.ndarray
    first: np.ndarray
    often: np.ndarray


def sorts(kinds: np.ndarray) -> Sorts:
    """Blocks of one number are of one sort."""
    _, first, of, often = np.unique(kinds, return_index=True, return_inverse=True, return_counts=True)
    return Sorts(of.reshape(-1).astype(np.int64), first, often.astype(float))


@dataclass(frozen=True)
class Floor:
    """[V · M, R] of each sort of blocks: ``once``, the seconds p; ``again``, (c − 1) · p + s; ``bytes``; [V · M, 1] the
    ``share`` of the devices. ``stages``: how many there are, where their devices are equally many."""

    once: np.ndarray
    again: np.ndarray
    bytes: np.ndarray
    share: np.ndarray
    sorts: Sorts
    base_sync: float
    base_bytes: float
    stages: int | None
    micro_batches: int

    def bound(self) -> float:
        """No answer takes less, whatever its bytes. Infinite where a block can't be."""
        if not self.once.size:
            return inf
        once = self.once.min(axis=0)
        if not once.max() < inf:
            return inf
        total = float(once @ self.sorts.often)
        largest = total + (self.micro_batches - 1) * max(float(once.max()), self._evenly(self.once))
        return (max(largest, self._least(0.0)) + self.base_sync) * (1 - ROUNDING)

    def within(self, limit: float) -> float:
        """No answer takes less whose devices have ``limit`` bytes; ``bound()`` must be finite."""
        room = limit - self.base_bytes
        if room <= 0:
            return inf if room < 0 else self.bound()
        scale = self._least(0.0) / room
        best = max(self._least(slope * scale) - slope * scale * room for slope in SLOPES)
        return (best + self.base_sync) * (1 - ROUNDING)

    def _evenly(self, each: np.ndarray) -> float:
        return float((each * self.share).min(axis=0) @ self.sorts.often)

    def _least(self, slope: float) -> float:
        """The least Σp + max [(c − 1) · p + s + λ · bytes]."""
        again = self.again + slope * self.bytes if slope else self.again
        mean = float((self.once + self.share * again).min(axis=0) @ self.sorts.often)
        if self.stages is None:
            return mean
        total = float(self.once.min(axis=0) @ self.sorts.often)
        return max(mean, total + evenest(again.min(axis=0)[self.sorts.of], self.stages, HALVINGS))


def floor(
    prices: Prices,
    known: Sorts,
    share: np.ndarray,
    usable: np.ndarray,
    stages: int | None,
    micro_batches: int,
) -> Floor:
    """The sums of a table's prices. ``share``: [V], of the devices, of each way; ``usable``: [V], which may be used."""
    ways = np.flatnonzero(usable)
    first, of = known.first, np.ix_(ways, known.first)

    def flat(values: np.ndarray) -> np.ndarray:
        return np.moveaxis(values, 2, 1).reshape(-1, len(first))

    once = flat(prices.forward[of] + prices.backward[of])
    return Floor(
        once=once,
        again=(micro_batches - 1) * once + flat(prices.sync[of]) if micro_batches > 1 else flat(prices.sync[of]),
        bytes=flat(prices.fixed_bytes[of] + prices.held_bytes[of]),
        share=np.repeat(share[ways], prices.forward.shape[2])[:, None],
        sorts=known,
        base_sync=float(prices.base_sync[ways].min(initial=inf)),
        base_bytes=float(prices.base_bytes[ways].min(initial=inf)),
        stages=stages,
        micro_batches=micro_batches,
    )


@compiled
def evenest(weights: np.ndarray, stages: int, halvings: int) -> float:
    """A bound, exact but for the last of the ``halvings``, of the largest sum where a chain is cut into ``stages``."""
    low, high = max(weights.max(), weights.sum() / stages), weights.sum()
    for _ in range(halvings):
        middle = (low + high) / 2
        number, here = 1, 0.0
        for weight in weights:
            if here + weight > middle:
                number += 1
                here = weight
            else:
                here += weight
        if number <= stages:
            high = middle
        else:
            low = middle
    return low
