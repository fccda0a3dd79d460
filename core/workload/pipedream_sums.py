"""Compiled: the dynamic programme over ideals of ``pipedream``."""

from __future__ import annotations

import numpy as np

from partita.planner.bits import within
from partita.planner.joint.compiled import compiled


@compiled
def extend(masks, table, share, most, below, best, before, given, numbers, lows, counts, live, start, stop):
    """Fill the rows ``start`` to ``stop`` of ``best`` [ideals, workers + 1]: the least seconds of the slowest stage.

    ``table`` [ideals, 2]: seconds, which never fall from row to row, and bytes of weights. ``share`` [workers + 1]:
    seconds of a byte of weights. A stage has at most ``most`` workers. ``before`` and ``given`` get the ideal before
    the last stage and that one's workers. What needs more than ``below`` seconds isn't looked at. ``numbers``, ``lows``
    and ``counts``: the first ``live`` entries are of ideals that can be done; the new number of them is returned.
    """
    workers = best.shape[1] - 1
    total = table[-1, 0]
    first = 0
    for ideal in range(start, stop):
        # The workers that are left must be able to do what is left.
        room = workers
        if below < np.inf:
            room = workers - int(np.ceil((total - table[ideal, 0]) / below - 1e-9))
            if table[ideal, 0] > room * below * (1 + 1e-12):
                continue
        while first < live and table[ideal, 0] - table[numbers[first], 0] > below * most * (1 + 1e-12):
            first += 1
        for index in range(first, live):
            low = numbers[index]
            compute = table[ideal, 0] - table[low, 0]
            widest = min(most, room - counts[index, 0])
            if compute > below * widest or not within(lows[index], masks[ideal]):
                continue
            weights = table[ideal, 1] - table[low, 1]
            for r in range(1, widest + 1):
                seconds = (compute + share[r] * weights) / r
                if seconds > below:
                    continue
                for count in range(counts[index, 0], min(counts[index, 1], room - r) + 1):
                    slowest = max(best[low, count], seconds)
                    if slowest <= below and slowest < best[ideal, count + r]:
                        best[ideal, count + r] = slowest
                        before[ideal, count + r] = low
                        given[ideal, count + r] = r
        least, largest = workers + 1, -1
        for count in range(workers + 1):
            if best[ideal, count] <= below and best[ideal, count] < np.inf:
                least = min(least, count)
                largest = count
        if largest >= 0:
            numbers[live] = ideal
            lows[live] = masks[ideal]
            counts[live, 0], counts[live, 1] = least, largest
            live += 1
    return live
