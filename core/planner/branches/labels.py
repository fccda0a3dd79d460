"""Compiled: the labels of ``proof``, whose docstring says what they mean."""

from __future__ import annotations

import numpy as np

from partita.planner.bits import wider, within
from partita.planner.joint.compiled import compiled

# How a search of labels ends: at stages of all blocks, with none left, or at its limit.
FOUND, NONE, STOPPED = 0, 1, 2
# Labels of all blocks that one search looks for.
WANTED = 8
# A label's columns: the label before, its set, how many units its stages have, and the shape of the last of them.
BEFORE, SET, UNIT, SHAPE = 0, 1, 2, 3


@compiled
def reads(wanted, small, large):
    """Whether a set has some of the blocks that ``large`` has and ``small`` hasn't."""
    for word in range(wanted.shape[0]):  # noqa: SIM110 (compiled)
        if wanted[word] & large[word] & ~small[word]:
            return True
    return False


@compiled
def highest(levels, having, small, large):
    """The highest level whose set meets the blocks between two sets; levels fall."""
    for at in range(levels.shape[0]):
        if reads(having[at], small, large):
            return levels[at]
    return 0.0


@compiled
def longest_behind(left, p, forward, backward, w, c):
    """The largest T with which ``sharp.path_seconds`` stays under so many seconds; negative where none does."""
    if c * p > left:
        return -1.0
    if c <= w:
        return min(left - p - (c - 1) * backward, left - p - (c - 1) * forward)
    rounds = (c - 1) // w
    head = p + (w - 1) * forward
    if head + (c - w) * p + (w - 1) * backward > left:
        return -1.0
    rest = (c - 1 - rounds * w) * p
    most = min(left - p - (c - w) * p - (w - 1) * backward, (left - p - (c - w) * p) / 2, left - head - (c - w) * p)
    return min(most, (left - rest) / (rounds + 1) - p, (left - head - rest) / rounds - p)


@compiled
def alike(old, new, alive, ports, nodes):
    """Whether two labels' live values are sent from as many stages, of the same ports, on the same nodes."""
    units = nodes.shape[1]
    for at in range(alive):
        one, two = old[at], new[at]
        # A stage's values go in the same messages.
        for before in range(at):
            if (old[before] == one) != (new[before] == two):
                return False
        if one != two and (
            ports[one // units] != ports[two // units]
            or nodes[one // units, one % units] != nodes[two // units, two % units]
        ):
            return False
    return True


@compiled
def thinned(
    first, end, after, made, slack, maker, rest, ends, new_made, new_slack, new_maker, new_rest, y, alive, ports, nodes,
    times,
):  # fmt: skip
    """Whether a label of the same set and units is as good as the new one in everything, and at how many was looked;
    those to which the new one is so are taken out of the list that begins at ``first[end]``."""
    seen, other, prior = 0, first[end], -1
    while other >= 0:
        seen += 1
        better, worse = ends[other] <= y, ends[other] >= y
        # What comes once a step leaves less to those behind.
        over = abs(ends[other] - y) / times
        for at in range(alive):
            if not better and not worse:
                break
            better = better and made[other, at] <= new_made[at]
            better = better and slack[other, at] - over >= new_slack[at]
            better = better and rest[other, at] >= new_rest[at]
            worse = worse and made[other, at] >= new_made[at]
            worse = worse and slack[other, at] <= new_slack[at] - over
            worse = worse and rest[other, at] <= new_rest[at]
        if (better or worse) and not alike(maker[other], new_maker, alive, ports, nodes):
            better = worse = False
        if better:
            return True, seen
        if not worse:
            prior = other
        elif prior < 0:
            first[end] = after[other]
        else:
            after[prior] = after[other]
        other = after[other]
    return False, seen


@compiled
def extended(
    masks, seconds, forward, backward, size, sync, sloped, slopes, base_bytes, base_sync, room, temporary, having,
    beyond, beyond_having, units, prices_of, ports, nodes, live, alive, begins, readers, moved, latency, directions,
    work, tails, paths, least_sync, held, ahead, below, c, grid, most,
):  # fmt: skip
    """Goes from label to label, until ``WANTED`` have all blocks or none is left: how it ends, those labels and their
    seconds, the labels' columns [labels, 4], and how much work it was."""
    sets, all_units, all_shapes = masks.shape[0], prices_of.shape[1], units.shape[0]
    width = live.shape[1]
    numbers = np.full((1024, 4), -1, np.int64)
    # Of each live value of its set: when it is made, the longest path that may lie behind its maker, the maker's shape
    # and unit, and the stages that may lie behind it.
    made, slack = np.zeros((1024, width)), np.zeros((1024, width))
    maker, rest = np.zeros((1024, width), np.int64), np.zeros((1024, width), np.int64)
    took, ends = np.zeros(1024), np.zeros(1024)
    after = np.full(1024, -1, np.int64)
    first = np.full((sets, all_units + 1), -1, np.int64)
    numbers[0] = -1, 0, 0, -1
    ends[0] = least_sync
    first[0, 0] = 0
    # What comes once a step leaves less to those behind: at least so much, as their path counts so many times at most.
    times = 1 if c <= 2 else max(2, (c - 1) // 2 + 1)
    count, looked = 1, 0
    whole, whole_seconds, wholes = np.zeros(WANTED, np.int64), np.zeros(WANTED), 0
    larger, place = np.zeros(sets, np.int64), np.full(readers.shape[0], -1, np.int64)
    ready, each, budget = np.zeros(width), np.zeros(width), np.zeros(width)
    far, origin = np.zeros(width, np.int64), np.zeros(width, np.int64)
    new_made, new_slack = np.zeros(width), np.zeros(width)
    new_maker, new_rest = np.zeros(width, np.int64), np.zeros(width, np.int64)
    for i in range(sets - 1):
        if first[i].max() < 0:
            continue
        for at in range(alive[i]):
            place[live[i, at]] = at
        several = 0
        for j in range(i + 1, sets):
            if within(masks[i], masks[j]):
                larger[several] = j
                several += 1
        looked += (sets - i) // 4
        for q in range(all_units):
            label = first[i, q]
            while label >= 0:
                for shape in range(all_shapes):
                    v, end = prices_of[shape, q], q + units[shape]
                    if v < 0 or end > all_units:
                        continue
                    for at_j in range(several):
                        j = larger[at_j]
                        last = j == sets - 1
                        if last != (end == all_units):
                            continue
                        least = seconds[v, j] - seconds[v, i]
                        y = max(ends[label], base_sync[v] + sync[v, j] - sync[v, i])
                        if c * least + y >= below:
                            continue
                        behind = 0.0 if last else c * (work[sets - 1] - work[j]) / (all_units - end)
                        if behind + y >= below:
                            continue
                        looked += 1
                        later = (y - ends[label]) / times
                        # What the stage reads, in the order in which it is ready, passes its port.
                        reading, most_rest = 0, held.shape[0] - 1
                        for at in range(alive[i]):
                            value = live[i, at]
                            if not reads(readers[value], masks[i], masks[j]):
                                continue
                            most_rest = min(most_rest, rest[label, at] - 1)
                            source = maker[label, at]
                            both = nodes[source // all_units, source % all_units] | nodes[shape, q]
                            crosses = 1 if both & (both - 1) else 0
                            sent = moved[crosses, value, ports[source // all_units], ports[shape]]
                            # The first value of a stage brings the latency of the messages that all of its are in.
                            known = False
                            for one in range(reading):
                                known = known or origin[one] == source
                            if not known:
                                sent += latency[crosses] * directions[value]
                            to = reading
                            while to > 0 and ready[to - 1] > made[label, at]:
                                ready[to], each[to], origin[to] = ready[to - 1], each[to - 1], origin[to - 1]
                                far[to], budget[to] = far[to - 1], budget[to - 1]
                                to -= 1
                            ready[to], each[to], origin[to] = made[label, at], sent, source
                            far[to], budget[to] = crosses, slack[label, at] - later
                            reading += 1
                        e, left, busy = 0.0, np.inf, 0.0
                        for one in range(reading):
                            e = max(e, ready[one]) + each[one]
                            passed = 0.0
                            for other in range(reading):
                                if far[other] == far[one]:
                                    passed += each[other]
                            left = min(left, budget[one] - passed)
                            # Of both directions one takes at least half, in each turn.
                            busy = max(busy, (c - 1) * passed / 2)
                        if e + c * least + y >= below or left < least:
                            continue
                        f, b = forward[v, j] - forward[v, i], backward[v, j] - backward[v, i]
                        # A value that is read later has a stage behind.
                        least_rest = 0
                        for at in range(alive[j]):
                            if place[live[j, at]] < 0:
                                least_rest = 1
                        free = room - base_bytes[v]
                        under = free - highest(temporary[v], having[v], masks[i], masks[j])
                        before = np.inf
                        for h in range(most_rest, least_rest - 1, -1):
                            more = highest(beyond[v, h], beyond_having[v, h], masks[i], masks[j])
                            if size[v, h, j] - size[v, h, i] + more > free * (1 + 1e-9):
                                continue
                            p = least
                            for slope in range(slopes.shape[2]):
                                if slopes[v, h, slope] > 0:
                                    bound = sloped[v, h, slope, j] - sloped[v, h, slope, i]
                                    p = max(p, (bound - slopes[v, h, slope] * under) * (1 - 1e-9))
                            # More stages behind leave all choices that fewer do, but for memory.
                            if p >= before * (1 - 1e-6) or e + c * p + y >= below or left < p:
                                continue
                            t = min(left - p, below - e - y - p - busy)
                            t = min(t, longest_behind(below - e - y, p, f, b, ahead[h], c))
                            if t < 0:
                                continue
                            before, good, earliest = p, True, np.inf
                            for at in range(alive[j]):
                                value = live[j, at]
                                old = place[value]
                                if old >= 0:
                                    new_made[at], new_slack[at] = made[label, old], slack[label, old] - later
                                    new_maker[at], new_rest[at] = maker[label, old], rest[label, old]
                                else:
                                    new_made[at] = np.floor((e + p) / grid) * grid
                                    new_slack[at] = np.ceil(t / grid) * grid
                                    new_maker[at], new_rest[at] = shape * all_units + q, h
                                earliest = min(earliest, new_made[at])
                                free_units = all_units - end
                                late = new_made[at] + tails[free_units, value] + y >= below
                                if late or new_slack[at] < paths[free_units, value]:
                                    good = False
                                    break
                            if not good or (not last and not begins[j] and earliest + behind + y >= below):
                                continue
                            beaten = False
                            if not last:
                                beaten, seen = thinned(
                                    first[j], end, after, made, slack, maker, rest, ends, new_made, new_slack,
                                    new_maker, new_rest, y, alive[j], ports, nodes, times,
                                )  # fmt: skip
                                looked += seen
                            if beaten:
                                continue
                            if count == took.shape[0]:
                                if 2 * count > most:
                                    return STOPPED, whole[:wholes], whole_seconds[:wholes], numbers[:count], looked
                                rows = 2 * count
                                numbers, took, ends = wider(numbers, rows), wider(took, rows), wider(ends, rows)
                                made, slack, after = wider(made, rows), wider(slack, rows), wider(after, rows)
                                maker, rest = wider(maker, rows), wider(rest, rows)
                            numbers[count] = label, j, end, shape
                            made[count], slack[count] = new_made, new_slack
                            maker[count], rest[count] = new_maker, new_rest
                            took[count], ends[count] = max(took[label], e + c * p), y
                            count += 1
                            if last:
                                whole[wholes], whole_seconds[wholes] = count - 1, took[count - 1] + y
                                wholes += 1
                                if wholes == WANTED:
                                    return FOUND, whole, whole_seconds, numbers[:count], looked
                                continue
                            after[count - 1] = first[j, end]
                            first[j, end] = count - 1
                label = after[label]
        for at in range(alive[i]):
            place[live[i, at]] = -1
    return FOUND if wholes else NONE, whole[:wholes], whole_seconds[:wholes], numbers[:count], looked
