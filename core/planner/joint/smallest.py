"""The least memory a device at which a table has an answer: a dynamic programme over the heaviest stage.

A stage's bytes are base + Σ fixed + Σ lent + w · Σ held + the largest temporary. For every size of the largest
temporary the rest is a sum, so that each block takes the option with the fewest bytes among those that stay under it;
over stages the largest counts, from the last one back. Times play no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from partita.planner.joint.heaviest import stages_of, whole
from partita.planner.joint.rows import row
from partita.planner.joint.table import Chosen, JointTable

# Sums in another order differ in their last digits: by less than this share of a byte.
DIGITS = 1e-6


@dataclass(frozen=True)
class Smallest:
    """The least limit in whole bytes and an answer that fits it."""

    bytes: int
    stages: tuple[Chosen, ...]


def floor(table: JointTable) -> float:
    """No answer has less on its heaviest device: its largest block, and an even share of all state."""
    prices = table.prices
    real, used, units = np.isfinite(prices.forward + prices.backward), table.used, table.least_units
    if not used.any():
        return float("inf")
    size = np.where(real, prices.fixed_bytes + prices.held_bytes, np.inf).min(axis=2)
    alone = np.where(real, prices.fixed_bytes + prices.held_bytes + prices.temporary_bytes, np.inf).min(axis=2)
    largest = float((alone + prices.base_bytes[:, None])[used].min(axis=0).max())
    share = float((size[used] * units[used, None]).min(axis=0).sum()) / table.all_units
    return max(largest, share + float(prices.base_bytes[used].min())) * (1 - 1e-9)


def smallest(table: JointTable, under: float = float("inf")) -> Smallest | None:
    """The answer whose heaviest device has the fewest bytes; None where none has fewer than ``under``."""
    prices = table.prices
    flights = np.array([table.held(behind) for behind in range(table.stages_at_most)], dtype=np.int64)
    real = np.isfinite(prices.forward + prices.backward)
    arrays = (prices.fixed_bytes, prices.held_bytes, prices.temporary_bytes, prices.base_bytes, prices.lent_bytes)
    fixed, held, temporary, base, lent = (np.ascontiguousarray(array, float) for array in arrays)
    units, of = np.ascontiguousarray(table.units, np.int64), np.ascontiguousarray(table.prices_of, np.int64)
    best, choices = whole(
        np.ascontiguousarray(real), fixed, held, temporary, base, lent, units, of, flights, float(under)
    )
    ends = best[:, 0, 0]
    if not ends.min() < under:
        return None
    behind = int(ends.argmin())
    found, start, unit = [], 0, 0
    for left in range(behind, -1, -1):
        shape, stop = (int(value) for value in choices[left, start, unit])
        options = stages_of(
            real, fixed, held, temporary, base, lent, int(of[shape, unit]), start, stop, int(flights[left])
        )
        found.append(Chosen(start, stop, unit, shape, options))
        start, unit = stop, unit + int(units[shape])
    needed = ceil(float(ends[behind]) - DIGITS)
    return Smallest(needed + (not _inside(table, found, needed)), tuple(found))


def _inside(table: JointTable, stages: list[Chosen], limit: int) -> bool:
    """Whether the search finds that the stages fit, to the last digit of its own sums."""
    for left, stage in zip(range(len(stages) - 1, -1, -1), stages, strict=True):
        v = int(table.prices_of[stage.shape, stage.unit])
        found = row(table.prices, v, stage.start, table.held(left), float(limit), False, float("inf"), last=left == 0)
        if found.first[stage.stop] == found.first[stage.stop + 1]:
            return False
    return True
