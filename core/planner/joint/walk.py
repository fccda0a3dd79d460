"""Compiled: labels that go from block to block, and the paths of least seconds. What they mean is in ``rows``.

A label is a row of five numbers: forward, backward, state and held bytes, temporary bytes, sync. The code is compiled
at its first use and kept on disk.
"""

from __future__ import annotations

import numpy as np

from partita.planner.joint.compiled import compiled

# So many values of temporary bytes are told apart quickly; more of them cost more time.
LEVELS = 24


@compiled
def _equal(one, two):
    """Whether all numbers are equal."""
    for m in range(len(one)):  # noqa: SIM110 (compiled)
        if one[m] != two[m]:
            return False
    return True


@compiled
def paths(
    forward, backward, fixed, held, temporary, sync, enter_f, enter_b, leave_f, leave_b, change_f, change_b,
    base_bytes, base_sync, lent_bytes, lent_sync, used,
):  # fmt: skip
    """Of the ``used`` ways. Blocks that cost what the next ones do have the next ones' paths."""
    ways, n, options = forward.shape
    out = np.full((6, ways, n, n + 1), np.inf)
    # After each block of the path: a path of the start before that is no different has the same.
    states = np.empty((n, options, 6))
    alike = np.zeros(n, np.bool_)
    changes_alike = np.zeros(n, np.bool_)
    for v in range(ways):
        if not used[v]:
            continue
        for i in range(n - 1):
            same = True
            for each in (forward, backward, fixed, held, temporary, sync, enter_f, enter_b, leave_f, leave_b):
                same = same and _equal(each[v, i], each[v, i + 1])
            alike[i] = same
            same = True
            for each in (change_f, change_b):
                for before in range(options):
                    same = same and _equal(each[v, i, before], each[v, i + 1, before])
            changes_alike[i] = same
        for i in range(n - 1, -1, -1):
            following = True
            for j in range(i, n):
                following = (
                    following and j < n - 1 and alike[j] and (j == i or changes_alike[j])
                    and lent_bytes[v, i, j] == lent_bytes[v, i + 1, j + 1]
                    and lent_sync[v, i, j] == lent_sync[v, i + 1, j + 1]
                )  # fmt: skip
                if following:
                    for column in range(6):
                        out[column, v, i, j + 1] = out[column, v, i + 1, j + 2]
                    continue
                now = states[j - i]
                for m in range(options):
                    if j == i:
                        now[m, 0] = enter_f[v, i, m] + forward[v, i, m]
                        now[m, 1] = enter_b[v, i, m] + backward[v, i, m]
                        now[m, 2] = base_bytes[v] + fixed[v, i, m] + lent_bytes[v, i, i]
                        now[m, 3] = held[v, i, m]
                        now[m, 4] = temporary[v, i, m]
                        now[m, 5] = base_sync[v] + sync[v, i, m] + lent_sync[v, i, i]
                        continue
                    last = states[j - i - 1]
                    now[m, 0] = np.inf
                    now[m, 1] = np.inf
                    here = forward[v, j, m] + backward[v, j, m]
                    if not here < np.inf:
                        continue
                    best = -1
                    seconds = np.inf
                    for before in range(options):
                        took = last[before, 0] + last[before, 1]
                        took += change_f[v, j, before, m] + change_b[v, j, before, m]
                        if took < seconds or (
                            best >= 0 and took == seconds and took < np.inf and last[before, 3] < last[best, 3]
                        ):
                            seconds = took
                            best = before
                    if best < 0:
                        continue
                    now[m, 0] = last[best, 0] + change_f[v, j, best, m] + forward[v, j, m]
                    now[m, 1] = last[best, 1] + change_b[v, j, best, m] + backward[v, j, m]
                    now[m, 2] = last[best, 2] + fixed[v, j, m] + lent_bytes[v, i, j]
                    now[m, 3] = last[best, 3] + held[v, j, m]
                    now[m, 4] = max(last[best, 4], temporary[v, j, m])
                    now[m, 5] = last[best, 5] + sync[v, j, m] + lent_sync[v, i, j]
                best = -1
                seconds = np.inf
                for m in range(options):
                    took = now[m, 0] + now[m, 1] + leave_f[v, j, m] + leave_b[v, j, m]
                    if took < seconds or (best >= 0 and took == seconds and took < np.inf and now[m, 3] < now[best, 3]):
                        seconds = took
                        best = m
                if best >= 0:
                    out[0, v, i, j + 1] = now[best, 0] + leave_f[v, j, best]
                    out[1, v, i, j + 1] = now[best, 1] + leave_b[v, j, best]
                    for column in range(2, 6):
                        out[column, v, i, j + 1] = now[best, column]
    return out[0], out[1], out[2], out[3], out[4], out[5]


@compiled
def _goes_before(a, b):
    """In order of seconds, bytes, temporary bytes and sync (then of forward seconds)."""
    one, two = a[0] + a[1], b[0] + b[1]
    if one != two:
        return one < two
    for column in (2, 3, 4, 0):
        if a[column] != b[column]:
            return a[column] < b[column]
    return False


@compiled
def _ordered(labels, count):
    """The indices of the first labels in that order, equal ones as they came: a merge sort."""
    order, other = np.arange(count), np.arange(count)
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            middle, stop = min(start + width, count), min(start + 2 * width, count)
            i, j = start, middle
            for place in range(start, stop):
                if i < middle and (j == stop or not _goes_before(labels[order[j]], labels[order[i]])):
                    other[place] = order[i]
                    i += 1
                else:
                    other[place] = order[j]
                    j += 1
        order, other = other, order
        width *= 2
    return order


@compiled
def _bisect(stairs, height, size, right):
    """How many steps of a staircase are lower than ``size``, with those as high where ``right``."""
    low, high = 0, height
    while low < high:
        middle = (low + high) // 2
        if stairs[middle, 0] < size or (right and stairs[middle, 0] == size):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _front(labels, count, apart):
    """The indices of the labels that no other beats, those with the least seconds first.

    In their order none is beaten by a later one. For each value of temporary bytes the labels so far are a staircase,
    bytes going up and sync down, in which a bisection finds whoever beats.
    """
    order = _ordered(labels, count)
    kept = np.empty(count, np.int64)
    number = 0
    levels = np.empty(LEVELS)
    known = 0
    for at in range(count):
        level = 0
        while level < known and levels[level] != labels[at, 3]:
            level += 1
        if level == known:
            if known == LEVELS:
                known += 1
                break
            levels[known] = labels[at, 3]
            known += 1
    if apart or known > LEVELS:
        for place in range(count):
            here = labels[order[place]]
            beaten = False
            for other in range(number):
                there = labels[kept[other]]
                if (
                    there[2] <= here[2] and there[3] <= here[3] and there[4] <= here[4]
                    and (not apart or (there[0] <= here[0] and there[1] <= here[1]))
                ):  # fmt: skip
                    beaten = True
                    break
            if not beaten:
                kept[number] = order[place]
                number += 1
        return kept[:number]
    stairs = np.empty((known, count, 2))
    heights = np.zeros(known, np.int64)
    for place in range(count):
        here = labels[order[place]]
        size, later = here[2], here[4]
        mine = 0
        beaten = False
        for level in range(known):
            if levels[level] == here[3]:
                mine = level
            if levels[level] <= here[3]:
                under = _bisect(stairs[level], heights[level], size, True)
                if under > 0 and stairs[level, under - 1, 1] <= later:
                    beaten = True
                    break
        if beaten:
            continue
        kept[number] = order[place]
        number += 1
        # What it beats on its own staircase goes.
        start = _bisect(stairs[mine], heights[mine], size, False)
        stop = start
        while stop < heights[mine] and stairs[mine, stop, 1] >= later:
            stop += 1
        gone = stop - start
        if gone == 0:
            for at in range(heights[mine], start, -1):
                stairs[mine, at, 0] = stairs[mine, at - 1, 0]
                stairs[mine, at, 1] = stairs[mine, at - 1, 1]
        elif gone > 1:
            for at in range(stop, heights[mine]):
                stairs[mine, at - gone + 1, 0] = stairs[mine, at, 0]
                stairs[mine, at - gone + 1, 1] = stairs[mine, at, 1]
        stairs[mine, start, 0] = size
        stairs[mine, start, 1] = later
        heights[mine] += 1 - gone
    return kept[:number]


@compiled
def _grown(array):
    """The array with as much room again."""
    found = np.empty(2 * len(array), np.int64)
    for at in range(len(array)):
        found[at] = array[at]
    return found


@compiled
def walk(
    forward, backward, fixed, held, temporary, sync, enter_f, enter_b, leave_f, leave_b, change_f, change_b, base_bytes,
    base_sync, lent_bytes, lent_sync, rest, slope, start, w, room, apart, below,
):  # fmt: skip
    n, options = forward.shape
    # All labels ever: who came before, and by which option.
    parents = np.empty(1024, np.int64)
    chosen = np.empty(1024, np.int64)
    made = 0
    # By last option, the labels that go on.
    labels = np.empty((options, 64, 5))
    ids = np.empty((options, 64), np.int64)
    counts = np.zeros(options, np.int64)
    out = np.empty((256, 5))
    out_stop = np.empty(256, np.int64)
    out_id = np.empty(256, np.int64)
    written = 0
    for j in range(start, n):
        most = 1 if j == start else counts.sum()
        fresh = np.empty((options, max(1, most), 5))
        fresh_parent = np.empty((options, max(1, most)), np.int64)
        fresh_count = np.zeros(options, np.int64)
        for m in range(options):
            if not forward[j, m] + backward[j, m] < np.inf:
                continue
            state = fixed[j, m] + w * held[j, m] + lent_bytes[start, j]
            later = sync[j, m] + lent_sync[start, j]
            if j == start:
                size = base_bytes[0] + state
                if size + temporary[j, m] <= room:
                    fresh[m, 0, 0] = enter_f[j, m] + forward[j, m]
                    fresh[m, 0, 1] = enter_b[j, m] + backward[j, m]
                    fresh[m, 0, 2] = size
                    fresh[m, 0, 3] = temporary[j, m]
                    fresh[m, 0, 4] = base_sync[0] + later
                    fresh_parent[m, 0] = -1
                    if fresh[m, 0, 0] + fresh[m, 0, 1] < np.inf:
                        fresh_count[m] = 1
                continue
            for before in range(options):
                down = change_f[j, before, m] + forward[j, m]
                up = change_b[j, before, m] + backward[j, m]
                if not down + up < np.inf:
                    continue
                for at in range(counts[before]):
                    size = labels[before, at, 2] + state
                    beside = max(labels[before, at, 3], temporary[j, m])
                    took = labels[before, at, 0] + labels[before, at, 1] + down + up
                    if size + rest[1, j + 1] + beside > room or not took + rest[0, j + 1] < below:
                        continue
                    if not took + slope * size + rest[2, j + 1] < below + slope * (room - beside):
                        continue
                    place = fresh_count[m]
                    fresh[m, place, 0] = labels[before, at, 0] + down
                    fresh[m, place, 1] = labels[before, at, 1] + up
                    fresh[m, place, 2] = size
                    fresh[m, place, 3] = beside
                    fresh[m, place, 4] = labels[before, at, 4] + later
                    fresh_parent[m, place] = ids[before, at]
                    fresh_count[m] = place + 1
        if fresh_count.sum() == 0:
            break
        widest = 0
        fronts = np.empty((options, fresh_count.max()), np.int64)
        for m in range(options):
            front = _front(fresh[m], fresh_count[m], apart)
            fronts[m, : len(front)] = front
            counts[m] = len(front)
            widest = max(widest, len(front))
        labels = np.empty((options, widest, 5))
        ids = np.empty((options, widest), np.int64)
        ends = np.empty((options * widest, 5))
        end_ids = np.empty(options * widest, np.int64)
        ended = 0
        for m in range(options):
            front = fronts[m]
            for at in range(counts[m]):
                if made == len(parents):
                    parents = _grown(parents)
                    chosen = _grown(chosen)
                parents[made] = fresh_parent[m, front[at]]
                chosen[made] = m
                labels[m, at] = fresh[m, front[at]]
                ids[m, at] = made
                if leave_f[j, m] + leave_b[j, m] < np.inf:
                    ends[ended] = labels[m, at]
                    ends[ended, 0] += leave_f[j, m]
                    ends[ended, 1] += leave_b[j, m]
                    # All of them fit: their bytes don't matter any more.
                    ends[ended, 2] = 0.0
                    ends[ended, 3] = 0.0
                    end_ids[ended] = made
                    ended += 1
                made += 1
        last = _front(ends, ended, apart)
        for at in last:
            if written == len(out):
                more = np.empty((2 * written, 5))
                for k in range(written):
                    for column in range(5):
                        more[k, column] = out[k, column]
                out = more
                out_stop = _grown(out_stop)
                out_id = _grown(out_id)
            out[written] = ends[at]
            out_stop[written] = j + 1
            out_id[written] = end_ids[at]
            written += 1
    return out[:written], out_stop[:written], out_id[:written], parents[:made], chosen[:made]
