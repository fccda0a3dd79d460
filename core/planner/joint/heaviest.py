"""Compiled: the dynamic programme of ``smallest``, whose docstring says what it means."""

from __future__ import annotations

import numpy as np

from partita.planner.joint.compiled import compiled


@compiled
def _levels(real, temporary, v):
    """The sizes of temporary bytes that options of a variant have, each once, in order."""
    n, options = real.shape[1:]
    found = np.empty(n * options)
    count = 0
    for i in range(n):
        for m in range(options):
            if real[v, i, m]:
                found[count] = temporary[v, i, m]
                count += 1
    return np.unique(found[:count])


@compiled
def whole(real, fixed, held, temporary, base, lent, units, prices_of, flights, under):
    """The least bytes [most, n, U] of the heaviest stage, by stages behind, first block and first unit; what it takes
    [most, n, U, 2]: the shape and the stop of the first stage."""
    ways, n, options = real.shape
    most, all_units, shapes = len(flights), prices_of.shape[1], len(units)
    best = np.full((most, n, all_units), np.inf)
    choices = np.zeros((most, n, all_units, 2), np.int64)
    alike = units.min() == units.max()
    size = np.empty((ways, n, n + 1))
    before = -1
    for behind in range(most):
        w = flights[behind]
        if w != before:
            before = w
            size[:] = np.inf
            for v in range(ways):
                for level in _levels(real, temporary, v):
                    if not base[v] + level < under:
                        break
                    for i in range(n):
                        total = base[v] + level
                        for j in range(i, n):
                            least = np.inf
                            for m in range(options):
                                if real[v, j, m] and temporary[v, j, m] <= level:
                                    least = min(least, fixed[v, j, m] + w * held[v, j, m])
                            total += least + lent[v, i, j]
                            if not total < under:
                                break
                            size[v, i, j + 1] = min(size[v, i, j + 1], total)
        for k in range(shapes):
            u = units[k]
            lowest = all_units - u * (behind + 1) if alike else 0
            if lowest < 0:
                continue
            for q in range(lowest, lowest + 1 if alike else all_units - u + 1):
                v = prices_of[k, q]
                if v < 0 or (behind == 0) != (q + u == all_units):
                    continue
                for i in range(n - behind):
                    for j in range(i + 1, n + 1 - behind) if behind > 0 else range(n, n + 1):
                        here = size[v, i, j]
                        if not here < under:
                            if behind > 0:
                                break
                            continue
                        if behind > 0:
                            here = max(here, best[behind - 1, j, q + u])
                        if here < best[behind, i, q]:
                            best[behind, i, q] = here
                            choices[behind, i, q, 0] = k
                            choices[behind, i, q, 1] = j
    return best, choices


@compiled
def _options(real, fixed, held, temporary, base, lent, v, start, stop, w):
    options = real.shape[2]
    best = np.inf
    found = np.zeros(stop - start, np.int64)
    chosen = np.zeros(stop - start, np.int64)
    for level in _levels(real, temporary, v):
        total = base[v] + level
        for i in range(start, stop):
            least = np.inf
            for m in range(options):
                size = fixed[v, i, m] + w * held[v, i, m]
                if real[v, i, m] and temporary[v, i, m] <= level and size < least:
                    least = size
                    chosen[i - start] = m
            total += least + lent[v, start, i]
        if total < best:
            best = total
            found[:] = chosen
    return found


def stages_of(
    real: np.ndarray, fixed: np.ndarray, held: np.ndarray, temporary: np.ndarray, base: np.ndarray, lent: np.ndarray,
    v: int, start: int, stop: int, w: int,
) -> tuple[int, ...]:  # fmt: skip
    """The options of blocks ``start`` … ``stop`` − 1 with the fewest bytes."""
    return tuple(int(m) for m in _options(real, fixed, held, temporary, base, lent, v, start, stop, w))
