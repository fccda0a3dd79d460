"""Compiled: the dynamic programme of ``least``, whose docstring says what it means."""

from __future__ import annotations

import numpy as np

from partita.planner.joint.compiled import compiled

# Whether the numbers of a stage are those of an answer that fits, or only a bound of them.
EXACT, BOUND = 1, 2
# Sums that differ by less are equal: the more even stages are taken.
TIE = 1e-12


@compiled
def sums(
    bases, least, base_bytes, base_sync, index, first, labels, bounds, bound_index, least_p, before_p, work, units,
    port, prices_of, crosses, transfer_f, transfer_b, flights, cycles, room, limits, apart,
):  # fmt: skip
    base_f, base_b, base_fixed, base_held, base_temporary, base_later = bases
    least_f, least_b, least_fixed, least_held, least_sync = least
    n, most, shapes = base_f.shape[1], len(flights), len(units)
    all_units, ports = prices_of.shape[1], transfer_f.shape[2]
    # Where all stages are of one size, the number behind says where a stage begins.
    alike = units.min() == units.max()
    places = 1 if alike else all_units
    total = np.full((most, n, places, ports), np.inf)
    spread = np.zeros((most, n, places, ports))
    choices = np.zeros((most, n, places, ports, 4), np.int64)
    numbers = np.zeros((most, n, places, ports, 3))
    # The sum from a boundary on, transfer included, and the port behind it.
    onward = np.full((n + 1, places + 1, ports), np.inf)
    onward_spread = np.zeros((n + 1, places + 1, ports))
    onward_port = np.zeros((n + 1, places + 1, ports), np.int64)
    stage_most = limits[0] + limits[1] if apart else limits[0]
    for behind in range(most):
        w = flights[behind]
        if behind > 0:
            onward[:] = np.inf
            for j in range(1, n):
                for place in range(places):
                    q = all_units - units[0] * behind if alike else place
                    if q <= 0 or q >= all_units:
                        continue
                    cross = crosses[q]
                    for here in range(ports):
                        for after in range(ports):
                            rest = total[behind - 1, j, place, after]
                            if not rest < np.inf:
                                continue
                            down, up = transfer_f[cross, j, here, after], transfer_b[cross, j, here, after]
                            if apart:
                                if not (down < limits[0] and up < limits[1]):
                                    continue
                            elif not down + up < limits[0]:
                                continue
                            took = rest + (down + up)
                            if took < onward[j, place, here]:
                                onward[j, place, here] = took
                                onward_spread[j, place, here] = spread[behind - 1, j, place, after]
                                onward_port[j, place, here] = after
        for k in range(shapes):
            u, here = units[k], port[k]
            lowest = all_units - u * (behind + 1) if alike else 0
            if lowest < 0:
                continue
            highest = lowest if alike else (all_units - u)
            if not alike and behind == 0:
                lowest = all_units - u
            for q in range(lowest, highest + 1):
                v = prices_of[k, q]
                if v < 0 or (behind > 0 and q + u >= all_units):
                    continue
                place = 0 if alike else q
                next_place = 0 if alike else q + u
                # As many blocks before as stages before.
                before = -(-q // u) if alike else (1 if q > 0 else 0)
                for i in range(before, n - behind if q > 0 else 1):
                    # What comes before needs its time on the devices that are left for it.
                    if q > 0 and not work[0, i] * (1 - 1e-9) < stage_most * q:
                        break
                    if (
                        q > 0
                        and apart
                        and not (work[1, i] * (1 - 1e-9) < limits[0] * q and work[2, i] * (1 - 1e-9) < limits[1] * q)
                    ):
                        break
                    sooner = max(before_p[i], work[0, i] / q) * (1 - 1e-9) if q > 0 else 0.0
                    number = index[v, behind, i]
                    for j in range(i + 1, n + 1 - behind) if behind > 0 else range(n, n + 1):
                        if not (least_p[v, j] - least_p[v, i]) * (1 - 1e-9) < stage_most:
                            break
                        rest = 0.0
                        uneven = 0.0
                        if behind > 0:
                            rest = onward[j, next_place, here]
                            if not rest < np.inf:
                                continue
                            uneven = onward_spread[j, next_place, here]
                        best = np.inf
                        kind = 0
                        f = 0.0
                        b = 0.0
                        s = 0.0
                        if number >= 0:
                            for at in range(first[number, j], first[number, j + 1]):
                                lf, lb, ls = labels[at, 0], labels[at, 1], labels[at, 4]
                                if not ls < limits[2]:
                                    continue
                                if apart:
                                    if not (lf < limits[0] and lb < limits[1]):
                                        continue
                                elif not lf + lb < limits[0]:
                                    continue
                                if lf + lb < best:
                                    best, f, b, s = lf + lb, lf, lb, ls
                                    kind = EXACT
                        else:
                            f, b, s = base_f[v, i, j], base_b[v, i, j], base_later[v, i, j]
                            p = f + b
                            if not p < np.inf or (not apart and not p < limits[0]):
                                continue
                            size = base_fixed[v, i, j] + w * base_held[v, i, j] + base_temporary[v, i, j]
                            inside = size <= room and s < limits[2]
                            if apart:
                                inside = inside and f < limits[0] and b < limits[1]
                            if inside:
                                best = p
                                kind = EXACT
                            else:
                                size = base_bytes[v] + least_fixed[v, j] - least_fixed[v, i]
                                size += w * (least_held[v, j] - least_held[v, i])
                                later = base_sync[v] + least_sync[v, j] - least_sync[v, i]
                                # Differences of sums: the last digits are no reason to drop a stage.
                                if size * (1 - 1e-9) > room or not later * (1 - 1e-9) < limits[2]:
                                    continue
                                if apart and not (
                                    (least_f[v, j] - least_f[v, i]) * (1 - 1e-9) < limits[0]
                                    and (least_b[v, j] - least_b[v, i]) * (1 - 1e-9) < limits[1]
                                ):
                                    continue
                                best = p
                                if bound_index[v, behind] >= 0:
                                    best = max(p, bounds[bound_index[v, behind], i, j])
                                    if not (best < stage_most):
                                        continue
                                kind = BOUND
                        if kind == 0:
                            continue
                        took = best + rest
                        if not took + sooner < limits[3]:
                            continue
                        if not took / cycles[behind] < limits[0]:
                            continue
                        uneven += best * best
                        known = total[behind, i, place, here]
                        if took < known * (1 - TIE) or (
                            took <= known * (1 + TIE) and uneven < spread[behind, i, place, here]
                        ):
                            total[behind, i, place, here] = took
                            spread[behind, i, place, here] = uneven
                            choices[behind, i, place, here, 0] = k
                            choices[behind, i, place, here, 1] = j
                            choices[behind, i, place, here, 2] = kind
                            choices[behind, i, place, here, 3] = onward_port[j, next_place, here] if behind > 0 else -1
                            numbers[behind, i, place, here, 0] = f
                            numbers[behind, i, place, here, 1] = b
                            numbers[behind, i, place, here, 2] = s
    return total, choices, numbers
