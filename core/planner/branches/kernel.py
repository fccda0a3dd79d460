"""Compiled: the steps of ``programme``, whose docstring says what they mean."""

from __future__ import annotations

import numpy as np

from partita.planner.joint.compiled import compiled


@compiled
def stages_before(
    taken, choices, at, points, seconds, weighed, flight_of, units, prices_of, crosses, leaving, share, latency,
    per_byte, limit,
):  # fmt: skip
    """Stages that begin at point ``at`` and end at any later one."""
    deep, all_units = taken.shape[1] - 1, taken.shape[2] - 1
    i = points[at]
    for end in range(at + 1, len(points)):
        j = points[end]
        for h in range(deep):
            w = flight_of[h]
            for q in range(1, all_units + 1):
                rest = taken[end, h, q]
                if not rest < np.inf:
                    continue
                cross = crosses[q] if q < all_units else 0
                for k in range(len(units)):
                    begin = q - units[k]
                    if begin < 0:
                        continue
                    v = prices_of[k, begin]
                    if v < 0 or not weighed[w, v, i, j] < limit:
                        continue
                    size = (leaving[0, i, j] + leaving[1, i, j]) * share[k] + leaving[2, i, j] + leaving[3, i, j]
                    moved = size * per_byte[cross]
                    for way in range(2):
                        if leaving[way, i, j] + leaving[way + 2, i, j] > 0:
                            moved += latency[cross]
                    if not moved < limit:
                        continue
                    took = rest + seconds[w, v, i, j] + moved
                    if took < taken[at, h + 1, begin]:
                        taken[at, h + 1, begin] = took
                        choices[at, h + 1, begin, 0] = end
                        choices[at, h + 1, begin, 1] = k


@compiled
def beside(have, branch, found, came):
    """What branches have taken so far, and one more branch before them, from each unit: the longer of both."""
    deep, all_units = have.shape
    for q in range(all_units):
        for h in range(deep):
            if not have[h, q] < np.inf:
                continue
            for other in range(deep):
                for begin in range(q):
                    took = max(have[h, q], branch[q, other, begin])
                    high = max(h, other)
                    if took < found[high, begin]:
                        found[high, begin] = took
                        came[high, begin, 0] = h
                        came[high, begin, 1] = q
                        came[high, begin, 2] = other
