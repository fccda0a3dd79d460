"""The exact search: the best stages of one table, proven.

The formula is a sum plus (c − 1) times maxima plus a maximum. ``least`` finds the least sum among the answers whose
maxima stay under given limits; a branch and bound over the limits does the rest. After an answer with maxima
(m1, m2, m3), whatever is better has a sum that is no smaller, so at least one of its maxima is smaller: three branches,
cut off by bounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

import numpy as np

from partita.errors import is_interrupt
from partita.planner.joint.formula import Terms, terms_of
from partita.planner.joint.least import Grid, Piece, grid
from partita.planner.joint.rows import Base
from partita.planner.joint.table import Chosen, JointTable

# Sums of floats differ in their last digits with the order of addition; a gain smaller than this is none.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Found:
    """The best answer of a table. ``asked``: how many times a least sum was looked for."""

    stages: tuple[Chosen, ...]
    seconds: float
    terms: Terms
    asked: int


@dataclass(frozen=True)
class _Box:
    """Answers whose maxima are all under ``limits``; ``least`` are lower bounds of the maxima, ``total`` of the sum."""

    limits: tuple[float, float, float]
    least: tuple[float, float, float]
    total: float


class TimeOut(Exception):
    """The search's time is over."""


# What ends a search early. Ctrl-C within compiled code is a SystemError, and the interrupt its cause or the cause's.
STOPS = (KeyboardInterrupt, TimeOut, SystemError)


def is_stop(error: BaseException) -> bool:
    """Whether an error among ``STOPS`` is one of them in earnest."""
    return not isinstance(error, SystemError) or is_interrupt(error)


def best(
    table: JointTable, below: float = inf, bases: Base | None = None, relaxed: bool = False, deadline: float = inf
) -> Found | None:  # fmt: skip
    """The answer with the least step time, if one exists that fits the memory and takes less than ``below`` seconds.

    ``relaxed``: as though no micro-batch waited for another's return. That is no more than any schedule of the table's
    shapes takes, with any depth: GPipe's two maxima are no less than the maximum of the sums, and it holds more.
    TimeOut where ``time.monotonic()`` is past ``deadline``.
    """
    asked = grid(table, bases, relaxed)
    weight = float(table.micro_batches - 1)
    weights = (weight, weight if asked.apart else 0.0, 1.0)
    found: tuple[tuple[Piece, ...], Terms] | None = None
    boxes = [_Box((inf, inf, inf), _least_maxima(table, asked), 0.0)]
    questions = 0
    while boxes:
        if time.monotonic() > deadline:
            raise TimeOut
        box = boxes.pop()
        floor = box.total + sum(w * m for w, m in zip(weights, box.least, strict=True))
        if floor >= below * (1 - TOLERANCE):
            continue
        room = below - floor
        limits = [
            min(limit, (m + room / w) * (1 + TOLERANCE)) if w else limit
            for limit, m, w in zip(box.limits, box.least, weights, strict=True)
        ]
        if not questions:
            # No later box has wider limits.
            asked.below = limits[0] + limits[1] if asked.apart else limits[0]
        questions += 1
        most = below - sum(w * m for w, m in zip(weights, box.least, strict=True))
        answer = asked.least_sum(limits, most * (1 + TOLERANCE))
        if answer is None:
            continue
        here = terms_of(table, answer[1], answer[1], asked.cycles.tolist())
        if (seconds := here.step_seconds(table.micro_batches)) < below:
            found, below = (answer[1], here), seconds
        total = max(box.total, here.total * (1 - TOLERANCE))
        least = list(box.least)
        for k, value in enumerate((here.slowest, here.slowest_backward, here.sync)):
            if least[k] < value and weights[k]:
                limit = tuple(min(value, box.limits[k]) if m == k else box.limits[m] for m in range(3))
                boxes.append(_Box((limit[0], limit[1], limit[2]), (least[0], least[1], least[2]), total))
            least[k] = max(least[k], value)
    if found is None:
        return None
    return Found(asked.chosen(found[0]), below, found[1], questions)


def _least_maxima(table: JointTable, asked: Grid) -> tuple[float, float, float]:
    """Lower bounds of the three maxima: the largest block, and an even share of all."""

    prices, work = table.prices, asked.work[:, -1] / table.all_units * (1 - 1e-9)

    def share(values: np.ndarray) -> float:
        each = values.min(axis=(0, 2))
        return max(float(each.max()), float(each.sum()) / asked.most) * (1 - 1e-9)

    end = float(prices.base_sync.min()) * (1 - TOLERANCE)
    if table.schedule == "gpipe":
        return max(share(prices.forward), float(work[1])), max(share(prices.backward), float(work[2])), end
    return max(share(prices.forward + prices.backward), float(work[0])), 0.0, end
