"""Stages by themselves: the least seconds of blocks i … j − 1 under given prices, with and without regard to memory.

``Base`` is what a stage takes that minds neither memory nor limits, one path of options for each i and j: a lower
bound, and the answer wherever it fits. Where it doesn't, a row (all stops j of one start i, with w micro-batches in
flight) is found exactly: labels (forward, backward, bytes, temporary bytes, sync) go from block to block, and one that
another beats in everything is dropped (UniAP's memory constraint; the Pareto front of a shortest path with resources).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce

import numpy as np

from partita.planner.joint.table import Prices
from partita.planner.joint.walk import paths, walk

# Of Lagrange's bound.
SLOPES = 6
# Columns of a label: forward, backward, state and held bytes, temporary bytes, sync.
FORWARD, BACKWARD, BYTES, TEMPORARY, SYNC = range(5)


# The arrays of prices, in the order in which compiled code takes them.
FIELDS = tuple(field.name for field in fields(Prices))


def _plain(array: np.ndarray) -> np.ndarray:
    """The array in one order in memory: compiled code is made for each."""
    return np.ascontiguousarray(array, dtype=float)


@dataclass(frozen=True)
class Base:
    """[V, n, n + 1] each, at [v, i, j]: blocks i … j − 1 in the options with the least forward + backward seconds.

    ``least_*``: [V, n + 1], sums over the first blocks of the least value of any option.
    """

    forward: np.ndarray
    backward: np.ndarray
    fixed: np.ndarray
    held: np.ndarray
    temporary: np.ndarray
    sync: np.ndarray
    least_forward: np.ndarray
    least_backward: np.ndarray
    least_fixed: np.ndarray
    least_held: np.ndarray
    least_sync: np.ndarray


def least_option(values: np.ndarray) -> np.ndarray:
    """The least along the last axis. It is short: numpy's own minimum takes ten times as long."""
    return reduce(np.minimum, np.moveaxis(values, -1, 0))


def base(prices: Prices, used: np.ndarray | None = None) -> Base:
    """The paths of all starts and stops; infinite in the ways that aren't ``used`` [V]."""
    if used is None:
        used = np.ones(len(prices.forward), dtype=bool)
    forward, backward, fixed, held, temporary, sync = paths(*(_plain(getattr(prices, name)) for name in FIELDS), used)
    real = np.isfinite(prices.forward + prices.backward)

    def least(values: np.ndarray) -> np.ndarray:
        each = least_option(np.where(real, values, np.inf))
        # Where a block can't be, the path is infinite; here it is to leave those behind it as they are.
        each = np.where(np.isfinite(each), each, 0.0)
        return np.concatenate([np.zeros((len(each), 1)), np.cumsum(each, axis=1)], axis=1)

    return Base(
        forward, backward, fixed, held, temporary, sync, least(prices.forward), least(prices.backward),
        least(prices.fixed_bytes), least(prices.held_bytes), least(prices.sync),
    )  # fmt: skip


def slopes(prices: Prices, v: int, in_flight: int) -> np.ndarray:
    """Seconds that an option takes longer for each byte that it holds less than another one, of any block: few values
    over all of them."""
    seconds = prices.forward[v] + prices.backward[v]
    size = prices.fixed_bytes[v] + in_flight * prices.held_bytes[v]
    with np.errstate(invalid="ignore", divide="ignore"):
        longer = seconds[:, :, None] - seconds[:, None, :]
        less = size[:, None, :] - size[:, :, None]
        found = (longer / less)[(longer > 0) & (less > 0)]
    values = np.unique(found[np.isfinite(found)])
    return values[np.unique(np.linspace(0, len(values) - 1, SLOPES).round().astype(int))] if len(values) else values


def bound(prices: Prices, v: int, in_flight: int, room: float) -> np.ndarray:
    """[n, n + 1]: no stage of blocks i … j − 1 that fits takes less: Lagrange's bound, the best of a few slopes λ.

    The least seconds + λ · bytes over all paths, less λ · room, is a bound for any λ ≥ 0.
    """
    n = prices.forward.shape[1]
    found = np.full((n, n + 1), -np.inf)
    least = np.where(np.isfinite(prices.forward[v] + prices.backward[v]), prices.temporary_bytes[v], np.inf).min(axis=1)
    lent = np.cumsum(np.triu(prices.lent_bytes[v]), axis=1)
    largest = np.maximum.accumulate(np.triu(np.tile(least, (n, 1))), axis=1)
    fixed, temporary = (np.concatenate([np.zeros((n, 1)), each], axis=1) for each in (lent, largest))
    left = room - (fixed + prices.base_bytes[v]) - temporary
    for slope in slopes(prices, v, in_flight).tolist():
        weighed = paths(
            _plain(prices.forward[v : v + 1] + slope * (prices.fixed_bytes + in_flight * prices.held_bytes)[v : v + 1]),
            *(_plain(getattr(prices, name)[v : v + 1]) for name in FIELDS[1:]),
            np.ones(1, dtype=bool),
        )  # fmt: skip
        with np.errstate(invalid="ignore"):
            found = np.fmax(found, weighed[0][0] + weighed[1][0] - slope * left)
    return found


@dataclass(frozen=True)
class Row:
    """All stages that begin at a block and fit: ``labels`` [L, 5] with the stop of each, in order of stops.

    ``first[j]`` is the first label of stop j, ``first[n + 1]`` their number; of one stop they differ in seconds and
    sync.
    """

    labels: np.ndarray
    first: np.ndarray


def row(
    prices: Prices, v: int, start: int, in_flight: int, room: float, apart: bool, below: float, last: bool
) -> Row:  # fmt: skip
    """The stages from block ``start`` that take less than ``below`` seconds.

    ``apart``: forward and backward count by themselves (GPipe), not their sum. ``last``: only that of all blocks.
    """
    ahead = _rest(prices, v, in_flight, room, last)
    labels, stops, _, _, _ = walk(*_arguments(prices, v), *ahead, start, float(in_flight), room, apart, below)
    order = np.argsort(stops, kind="stable")
    n = prices.forward.shape[1]
    return Row(labels[order], np.searchsorted(stops[order], np.arange(n + 2)))


def options_of(
    prices: Prices,
    v: int,
    start: int,
    stop: int,
    in_flight: int,
    room: float,
    apart: bool,
    label: np.ndarray,
    last: bool,
) -> tuple[int, ...]:
    """The options of a stage that a row has: those whose sums are the label's."""
    over = float(label[FORWARD] + label[BACKWARD]) * (1 + 1e-9) + 1e-300
    labels, stops, ids, parents, chosen = walk(
        *_arguments(prices, v), *_rest(prices, v, in_flight, room, last), start, float(in_flight), room, apart, over
    )
    at = int(np.flatnonzero((stops == stop) & (labels == label).all(axis=1))[0])
    found, here = [], int(ids[at])
    while here >= 0:
        found.append(int(chosen[here]))
        here = int(parents[here])
    return tuple(reversed(found))


def _rest(prices: Prices, v: int, in_flight: int, room: float, last: bool) -> tuple[np.ndarray, float]:
    """[3, n + 1], of all blocks from each on: the least seconds, bytes, seconds + λ · bytes; and the slope λ.

    Zeros for a stage that may end anywhere.
    """
    n = prices.forward.shape[1]
    if not last:
        return np.zeros((3, n + 1)), 0.0
    seconds = prices.forward[v] + prices.backward[v]
    size = prices.fixed_bytes[v] + in_flight * prices.held_bytes[v]
    real = np.isfinite(seconds)

    def sums(values: np.ndarray) -> np.ndarray:
        least = np.where(real, values, np.inf).min(axis=1)
        return np.concatenate([np.cumsum(np.where(np.isfinite(least), least, 0.0)[::-1])[::-1], [0.0]]) * (1 - 1e-9)

    best, slope = -np.inf, 0.0
    for one in slopes(prices, v, in_flight).tolist():
        if (value := sums(seconds + one * size)[0] - one * (room - prices.base_bytes[v])) > best:
            best, slope = float(value), one
    return np.stack([sums(seconds), sums(size), sums(seconds + slope * size)]), slope


def _arguments(prices: Prices, v: int) -> tuple[np.ndarray, ...]:
    """What a walk under prices v is given, in the order of FIELDS."""
    return tuple(_plain(np.atleast_1d(getattr(prices, name)[v])) for name in FIELDS)
