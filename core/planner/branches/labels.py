"""Compiled: the labels of ``proof``, whose docstring says what they mean."""

from __future__ import annotations

import numpy as np

from partita.planner.bits import meets, wider, within
from partita.planner.branches.fitting import fitted
from partita.planner.joint.compiled import compiled

# How a search of labels ends: at stages of all blocks, with none left, or at its limit.
FOUND, NONE, STOPPED = 0, 1, 2
# Labels of all blocks that one search looks for.
WANTED = 8
# A label's columns: the label before, its set, how many units its stages have, and the shape of the last of them.
BEFORE, SET, UNIT, SHAPE = 0, 1, 2, 3
# A list's: the next of the same set and units, a label that is or was in it, and its first label.
NEXT, REPRESENTATIVE, FIRST = 0, 1, 2
# Of a value's maker, where that is asked: what its readers so far read through their ports and send back in all, what
# the shortest path from one of them is at least, and what its own ports, inside a node and between nodes, send and get.
PASSED, SHORTEST, SENT, GOT, SHARED = 0, 1, 2, 4, 6


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
def bucket_of(first, end, buckets, bucket_count, maker, new_maker, alive, ports, nodes):
    """The list of the labels of a set and units whose values are sent alike; how many lists there are then. ``buckets``
    [..., 3]: the next list of the same set and units, a label that is or was in it, and its first label."""
    at = first[end]
    while at >= 0:
        if alike(maker[buckets[at, REPRESENTATIVE]], new_maker, alive, ports, nodes):
            return at, bucket_count
        at = buckets[at, NEXT]
    buckets[bucket_count] = first[end], -1, -1
    first[end] = bucket_count
    return bucket_count, bucket_count + 1


@compiled
def gathered(bucket, buckets, after):
    """The labels of these lists."""
    found, count = np.zeros(64, np.int64), 0
    while bucket >= 0:
        label = buckets[bucket, FIRST]
        while label >= 0:
            if count == found.shape[0]:
                found = wider(found, 2 * count)
            found[count] = label
            count += 1
            label = after[label]
        bucket = buckets[bucket, NEXT]
    return found[:count]


@compiled
def thinned(
    bucket, after, made, slack, rest, shared, ends, new_made, new_slack, new_rest, new_shared, y, alive, times,
    joining,
):  # fmt: skip
    """Whether a label of a list is as good as the new one in everything, how many there are else, and with ``joining``
    the one that is most like it; those to which the new one is as good are taken out."""
    count, other, prior = 0, bucket[FIRST], -1
    nearest, least = -1, np.inf
    while other >= 0:
        better, worse = ends[other] <= y, ends[other] >= y
        # What comes once a step leaves less to those behind.
        over = abs(ends[other] - y) / times
        apart = over
        for at in range(alive):
            better = better and made[other, at] <= new_made[at] and slack[other, at] - over >= new_slack[at]
            better = better and rest[other, at] >= new_rest[at]
            worse = worse and made[other, at] >= new_made[at] and slack[other, at] <= new_slack[at] - over
            worse = worse and rest[other, at] <= new_rest[at]
            for one in range(shared.shape[2]):
                better = better and shared[other, at, one] <= new_shared[at, one]
                worse = worse and shared[other, at, one] >= new_shared[at, one]
            apart += abs(made[other, at] - new_made[at]) + abs(slack[other, at] - new_slack[at])
            if not better and not worse and (joining == 0 or apart >= least):
                break
        if better:
            return True, count, other
        if not worse:
            count += 1
            if apart < least:
                nearest, least = other, apart
            prior = other
        elif prior < 0:
            bucket[FIRST] = after[other]
        else:
            after[prior] = after[other]
        other = after[other]
    return False, count, nearest


@compiled
def joined(made, slack, rest, shared, ends, label, new_made, new_slack, new_rest, new_shared, y, alive, times):
    """Makes a label as good as itself and the new one: what it doesn't reach, neither does."""
    low = min(ends[label], y)
    for at in range(alive):
        made[at], rest[at] = min(made[at], new_made[at]), max(rest[at], new_rest[at])
        slack[at] = max(slack[at] + (ends[label] - low) / times, new_slack[at] + (y - low) / times)
        for one in range(shared.shape[1]):
            shared[at, one] = min(shared[at, one], new_shared[at, one])
    ends[label] = low


@compiled
def shortest(values, alive, old, paths):
    """What lies behind a stage at least: the longest of its values' ``paths``, by value; ``old``: not negative for
    values of others."""
    found = 0.0
    for at in range(alive):
        if old[values[at]] < 0:
            found = max(found, paths[values[at]])
    return found


@compiled
def passes(shared, maker, alive, origin, far, own, tier, path):
    """Adds a stage that reads from ``origin`` to what passes those stages' ports (``shared``, of all live values)."""
    for at in range(alive):
        for one in range(origin.shape[0]):
            if origin[one] == maker[at]:
                shared[at, PASSED] += tier[far[one], 0] + tier[far[one], 1]
                shared[at, SHORTEST] = min(shared[at, SHORTEST], path)
                shared[at, SENT + far[one]] += own[one, 0]
                shared[at, GOT + far[one]] += own[one, 1]
                break


@compiled
def waiting(made, values, alive, below_values, done, each_work, times, most):
    """Whether what reads from the values that are made last, at whatever distance, is more work than so many devices do
    after them in ``most`` seconds. ``below_values`` [values, words]: those blocks; ``times``: the micro-batches by the
    units that are left."""
    order = np.zeros(alive, np.int64)
    for at in range(alive):
        to = at
        while to > 0 and made[order[to - 1]] < made[at]:
            order[to] = order[to - 1]
            to -= 1
        order[to] = at
    counted, work = done.copy(), 0.0
    for at in order:
        for word in range(done.shape[0]):
            more = below_values[values[at], word] & ~counted[word]
            counted[word] |= more
            node = word * 64
            while more:
                if more & np.uint64(1):
                    work += each_work[node]
                more >>= np.uint64(1)
                node += 1
        if made[at] + times * work >= most:
            return True
    return False


@compiled
def extended(
    masks, seconds, forward, backward, most_forward, sync, tight, slopes, base_bytes, base_sync, room, units,
    prices_of, ports, nodes, live, alive, begins, readers, downs, ups, latency, directions, work, each_work,
    below_values, remaining, tails, paths, least_sync, most_sync, above, held, ahead, options, keys, values, sharing,
    joining, below, c, grid, most, most_work,
):  # fmt: skip
    """Goes from label to label, until ``WANTED`` have all blocks or none is left: how it ends, those labels and their
    seconds, the labels' columns [labels, 4], and how much work it was. ``joining``: so many labels of the same set and
    units; 0: all."""
    sets, all_units, all_shapes = masks.shape[0], prices_of.shape[1], units.shape[0]
    width = live.shape[1]
    numbers = np.full((1024, 4), -1, np.int64)
    # Of each live value of its set: when it is made, the longest path that may lie behind its maker, the maker's shape
    # and unit, and the stages that may lie behind it.
    made, slack = np.zeros((1024, width)), np.zeros((1024, width))
    maker, rest = np.zeros((1024, width), np.int64), np.zeros((1024, width), np.int64)
    shared, new_shared = np.zeros((1024, width, SHARED if sharing else 0)), np.zeros((width, SHARED if sharing else 0))
    took, ends = np.zeros(1024), np.zeros(1024)
    after = np.full(1024, -1, np.int64)
    first = np.full((sets, all_units + 1), -1, np.int64)
    numbers[0] = -1, 0, 0, -1
    ends[0] = least_sync
    buckets, bucket_count = np.full((1024, 3), -1, np.int64), 1
    buckets[0] = -1, 0, 0
    first[0, 0] = 0
    # What comes once a step leaves less to those behind: at least so much, as their path counts so many times at most.
    times = 1 if c <= 2 else max(2, (c - 1) // 2 + 1)
    # Of joined labels it isn't known which stage makes a value: it is one beyond all shapes, near all, with the best
    # port. What two stages send may pass unlike ports of a reader then, where there are several nodes.
    unknown, all_nodes = all_shapes * all_units, 0
    for shape in range(all_shapes):
        for q in range(all_units):
            all_nodes |= nodes[shape, q]
    together = joining == 0 or all_nodes & (all_nodes - 1) == 0
    wait = latency.copy()
    if joining > 0:
        wait[0] = latency.min()
    count, looked = 1, 0
    whole, whole_seconds, wholes = np.zeros(WANTED, np.int64), np.zeros(WANTED), 0
    place = np.full(readers.shape[0], -1, np.int64)
    # Of a set the larger ones, and which of its live values a stage between reads; of a shape those that may be, with
    # what such a stage takes.
    larger, read, chosen = np.zeros(sets, np.int64), np.zeros(sets, np.int64), np.zeros(sets, np.int64)
    least_of, work_of, sync_of, behind_of = np.zeros(sets), np.zeros(sets), np.zeros(sets), np.zeros(sets)
    p_of = np.zeros((sets, held.shape[0]))
    ready, given, back, budget = np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)
    far, origin, slot = np.zeros(width, np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64)
    own, tier = np.zeros((width, 2)), np.zeros((2, 2))
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
        # The least work first.
        larger[:several] = larger[:several][np.argsort(work[larger[:several]], kind="mergesort")]
        for at_j in range(several):
            read[at_j] = 0
            for at in range(alive[i]):
                if meets(readers[live[i, at]], masks[i], masks[larger[at_j]]):
                    read[at_j] |= 1 << at
        looked += (sets - i) // 32 + several // 2
        for q in range(all_units):
            here = gathered(first[i, q], buckets, after)
            if here.shape[0] == 0:
                continue
            if looked > most_work:
                return STOPPED, whole[:wholes], whole_seconds[:wholes], numbers[:count], looked
            for shape in range(all_shapes):
                v, end = prices_of[shape, q], q + units[shape]
                if v < 0 or end > all_units:
                    continue
                # The last stage takes all that is left of both, and no other does.
                last, free_units = end == all_units, all_units - end
                count_of, per = 0, c / units[shape] * (1 - 1e-9)
                for at_j in range(several - 1 if last else 0, several if last else several - 1):
                    j = larger[at_j]
                    work_of[count_of] = per * (work[j] - work[i])
                    if work_of[count_of] + least_sync >= below:
                        break
                    least_of[count_of] = seconds[v, j] - seconds[v, i]
                    sync_of[count_of] = base_sync[v] + sync[v, j] - sync[v, i]
                    behind_of[count_of] = 0.0 if last else c * (work[sets - 1] - work[j]) / free_units
                    over = max(c * least_of[count_of], behind_of[count_of]) + max(least_sync, sync_of[count_of])
                    if over < below and sync_of[count_of] <= most_sync:
                        chosen[count_of], p_of[count_of] = at_j, -1.0
                        count_of += 1
                looked += several // 32
                free = room - base_bytes[v]
                for label in here:
                    # Where nothing begins by itself, all does after some live value.
                    soonest = 0.0
                    if not begins[i] and alive[i] > 0:
                        soonest = made[label, : alive[i]].min()
                    for at_of in range(count_of):
                        if soonest + work_of[at_of] + ends[label] >= below:
                            break
                        j, least = larger[chosen[at_of]], least_of[at_of]
                        y, behind = max(ends[label], sync_of[at_of]), behind_of[at_of]
                        if soonest + max(c * least, behind) + y >= below or (last and y <= above):
                            continue
                        # Before the port is looked at: most go no further.
                        later, e, left, bits = (y - ends[label]) / times, 0.0, np.inf, read[chosen[at_of]]
                        at = 0
                        while bits:
                            if bits & 1:
                                e, left = max(e, made[label, at]), min(left, slack[label, at])
                            bits >>= 1
                            at += 1
                        if e + c * least + y >= below or left - later < least:
                            continue
                        looked += 1
                        # What the stage reads, in the order in which it is ready, passes its port.
                        reading, most_rest = 0, held.shape[0] - 1
                        for at in range(alive[i]):
                            if not read[chosen[at_of]] >> at & 1:
                                continue
                            most_rest = min(most_rest, rest[label, at] - 1)
                            value, source = live[i, at], maker[label, at]
                            both = nodes[source // all_units, source % all_units] | nodes[shape, q]
                            crosses = 1 if both & (both - 1) else 0
                            down = downs[crosses, value, ports[source // all_units], ports[shape]]
                            up = ups[crosses, value, ports[source // all_units], ports[shape]]
                            # The first value of a stage brings the latency of the messages that all of its are in.
                            known = False
                            for one in range(reading):
                                known = known or origin[one] == source
                            if not known:
                                down, up = down + wait[crosses], up + wait[crosses] * (directions[value] - 1)
                            to = reading
                            while to > 0 and ready[to - 1] > made[label, at]:
                                ready[to], given[to], back[to] = ready[to - 1], given[to - 1], back[to - 1]
                                origin[to], far[to], budget[to] = origin[to - 1], far[to - 1], budget[to - 1]
                                slot[to] = slot[to - 1]
                                to -= 1
                            ready[to], given[to], back[to] = made[label, at], down, up
                            origin[to], far[to], budget[to] = source, crosses, slack[label, at] - later
                            slot[to] = at
                            reading += 1
                        e, left, busy = 0.0, np.inf, 0.0
                        tier[:] = 0.0
                        for one in range(reading):
                            e = max(e, ready[one]) + given[one] + back[one]
                            down = up = own_down = own_up = 0.0
                            for other in range(reading):
                                if far[other] == far[one] and (other == one or together or far[one]):
                                    down, up = down + given[other], up + back[other]
                                if origin[other] == origin[one] and (other == one or joining == 0):
                                    own_down, own_up = own_down + given[other], own_up + back[other]
                            # All turns pass this stage's port, and that of each that it reads from.
                            busy = max(busy, (c - 1) * max(down, up))
                            own[one], tier[far[one]] = (own_down, own_up), (down, up)
                            if sharing:
                                others = shared[label, slot[one]]
                                own_down, own_up = own_down + others[SENT + far[one]], own_up + others[GOT + far[one]]
                            turns = below - y - ready[one] - (c - 1) * max(own_down, own_up)
                            all_turns = min(budget[one], turns)
                            left = min(left, all_turns - down - up)
                            if sharing and others[PASSED] > 0:
                                # The readers so far pass before this one or after it.
                                if others[PASSED] + others[SHORTEST] > all_turns:
                                    left = -1.0
                                elif others[PASSED] + down + up + others[SHORTEST] > all_turns:
                                    left = min(left, all_turns - others[PASSED] - down - up)
                        if e + c * least + y >= below or left < least:
                            continue
                        f, b = forward[v, j] - forward[v, i], backward[v, j] - backward[v, i]
                        most_f = most_forward[v, j] - most_forward[v, i]
                        # A value that is read later has a stage behind.
                        least_rest = 0
                        for at in range(alive[j]):
                            if place[live[j, at]] < 0:
                                least_rest = 1
                        before = np.inf
                        for h in range(most_rest, least_rest - 1, -1):
                            p = p_of[at_of, h]
                            if p < 0:
                                # Where all blocks fit in their fastest options, so do these.
                                p, steps = least, 0
                                if tight[v, h]:
                                    found, steps = fitted(
                                        masks[i], masks[j], v, held[h], *options, slopes[v, h], free, keys, values
                                    )
                                    p = max(least, found * (1 - 1e-9))
                                looked += steps // 8
                                p_of[at_of, h] = p
                            # More stages behind leave all choices that fewer do, but for memory.
                            if p >= before * (1 - 1e-6) or e + c * p + y >= below or left < p:
                                continue
                            t = min(left - p, below - e - y - p - busy)
                            # Blocks that are computed again take longer backward, not forward.
                            t = min(t, longest_behind(below - e - y, p, f, max(b, p - most_f), ahead[h], c))
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
                                    new_maker[at] = unknown if joining > 0 else shape * all_units + q
                                    new_rest[at] = h
                                if sharing:
                                    if old >= 0:
                                        new_shared[at] = shared[label, old]
                                    else:
                                        new_shared[at] = 0.0, np.inf, tier[0, 1], tier[1, 1], tier[0, 0], tier[1, 0]
                                earliest = min(earliest, new_made[at])
                                late = new_made[at] + tails[free_units, value] + y >= below
                                if late or new_slack[at] < paths[free_units, value]:
                                    good = False
                                    break
                            if sharing and good:
                                passes(
                                    new_shared, new_maker, alive[j], origin[:reading], far, own, tier,
                                    p + shortest(live[j], alive[j], place, paths[free_units]),
                                )  # fmt: skip
                            if not good or (not last and not begins[j] and earliest + behind + y >= below):
                                continue
                            if not last and waiting(
                                new_made, live[j], alive[j], below_values, masks[j], each_work, c / free_units,
                                below - y,
                            ):  # fmt: skip
                                continue
                            # All that is left begins after the first of what it may read.
                            first_read = 0.0 if last or begins[j] else earliest
                            if first_read + remaining[j, free_units] + y >= below:
                                continue
                            beaten, whole_took = False, max(took[label], e + c * p)
                            if not last:
                                if bucket_count == buckets.shape[0]:
                                    buckets = wider(buckets, 2 * bucket_count)
                                bucket, bucket_count = bucket_of(
                                    first[j], end, buckets, bucket_count, maker, new_maker, alive[j], ports, nodes
                                )
                                beaten, seen, one = thinned(
                                    buckets[bucket], after, made, slack, rest, shared, ends, new_made, new_slack,
                                    new_rest, new_shared, y, alive[j], times, joining,
                                )  # fmt: skip
                                looked += seen
                                if not beaten and 0 < joining <= seen:
                                    beaten = True
                                    if whole_took + y < took[one] + ends[one]:
                                        numbers[one], took[one] = (label, j, end, shape), whole_took
                                    joined(
                                        made[one], slack[one], rest[one], shared[one], ends, one, new_made, new_slack,
                                        new_rest, new_shared, y, alive[j], times,
                                    )  # fmt: skip
                            if beaten:
                                continue
                            if count == took.shape[0]:
                                if 2 * count > most:
                                    return STOPPED, whole[:wholes], whole_seconds[:wholes], numbers[:count], looked
                                rows = 2 * count
                                numbers, took, ends = wider(numbers, rows), wider(took, rows), wider(ends, rows)
                                made, slack, after = wider(made, rows), wider(slack, rows), wider(after, rows)
                                maker, rest, shared = wider(maker, rows), wider(rest, rows), wider(shared, rows)
                            numbers[count] = label, j, end, shape
                            made[count], slack[count] = new_made, new_slack
                            maker[count], rest[count], shared[count] = new_maker, new_rest, new_shared
                            took[count], ends[count] = whole_took, y
                            count += 1
                            if last:
                                whole[wholes], whole_seconds[wholes] = count - 1, took[count - 1] + y
                                wholes += 1
                                if wholes == WANTED:
                                    return FOUND, whole, whole_seconds, numbers[:count], looked
                                continue
                            after[count - 1] = buckets[bucket, FIRST]
                            buckets[bucket, FIRST] = count - 1
                            if buckets[bucket, REPRESENTATIVE] < 0:
                                buckets[bucket, REPRESENTATIVE] = count - 1
        for at in range(alive[i]):
            place[live[i, at]] = -1
    return FOUND if wholes else NONE, whole[:wholes], whole_seconds[:wholes], numbers[:count], looked
