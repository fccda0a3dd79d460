"""Compiled: whether the stages of ``piper`` can all stay under a time."""

from __future__ import annotations

import numpy as np

from partita.planner.bits import within
from partita.planner.joint.compiled import compiled

# Steps of one choice of what is computed again; beyond it, what is asked counts as neither possible nor ruled out.
STEPS = 20_000


@compiled
def crossings(masks, edges, entering, leaving):
    """Of each ideal the edges out of it, as places in one list [ideals + 1] and that list, and what they cost.

    ``entering`` and ``leaving`` [degrees, edges]: bytes of an edge for the stage that it goes to and comes from. The
    sums [degrees, ideals] of both are over the edges out of an ideal.
    """
    count, degrees = masks.shape[0], entering.shape[0]
    starts = np.zeros(count + 1, np.int64)
    one = np.uint64(1)
    listed = np.zeros(0, np.int64)
    into, out = np.zeros((degrees, count)), np.zeros((degrees, count))
    # Counted first, then filled.
    for fill in range(2):
        place = 0
        for ideal in range(count):
            for edge in range(edges.shape[0]):
                low, high = edges[edge]
                has = (masks[ideal, low // 64] >> np.uint64(low % 64)) & one
                if has and not (masks[ideal, high // 64] >> np.uint64(high % 64)) & one:
                    if fill == 1:
                        listed[place] = edge
                        for t in range(degrees):
                            into[t, ideal] += entering[t, edge]
                            out[t, ideal] += leaving[t, edge]
                    place += 1
            starts[ideal + 1] = place
        if fill == 0:
            listed = np.zeros(place, np.int64)
    return starts, listed, into, out


@compiled
def roof(low, high, each, base, flight, fixed, memory, most):
    """The most micro-batches in flight, up to ``most``, for which what is between two ideals can fit the memory."""
    one = np.uint64(1)
    members = np.empty(flight.shape[0], np.int64)
    count = 0
    for node in range(flight.shape[0]):
        word, bit = node // 64, np.uint64(node % 64)
        if (high[word] >> bit) & one and not (low[word] >> bit) & one:
            members[count] = node
            count += 1
    good, top = 0, most
    while good < top:
        y = (good + top + 1) // 2
        needed = each * y + base
        for place in range(count):
            needed -= max(0.0, flight[members[place]] * y + fixed[members[place]])
        if needed <= memory:
            good = y
        else:
            top = y - 1
    return good


@compiled
def choose(low, high, order, extra, flight, fixed, y, need, budget, items, taken):
    """Which nodes between two ideals to run in their other way, to save ``need`` bytes in at most ``budget`` seconds.

    ``order`` [nodes]: those whose other way saves something first, the fewest seconds a byte first. ``extra``,
    ``flight`` and ``fixed`` [nodes]: the seconds that the other way costs, the bytes that it saves a micro-batch in
    flight (``y`` of them) and at once. 1: found, in ``taken`` [nodes]; 0: there is no such choice; -1: given up.
    A depth-first search with the bound of the continuous relaxation (Martello and Toth, 1990, chapter 2).
    """
    one = np.uint64(1)
    count = 0
    covered, spent = 0.0, 0.0
    for place in range(order.shape[0]):
        node = order[place]
        taken[node] = False
        word, bit = node // 64, np.uint64(node % 64)
        if (high[word] >> bit) & one and not (low[word] >> bit) & one:
            saving = flight[node] * y + fixed[node]
            if saving > 0:
                items[count] = node
                count += 1
                if covered < need:
                    if covered + saving >= need and spent + extra[node] * (need - covered) / saving > budget:
                        return 0
                    covered += saving
                    spent += extra[node]
                    taken[node] = True
    if covered < need:
        return 0
    if spent <= budget:
        return 1
    for place in range(count):
        taken[items[place]] = False
    # The stack of this search is ``taken`` itself: forward by taking, back to the last taken one, which is then left.
    place, covered, spent = 0, 0.0, 0.0
    steps = 0
    while True:
        steps += 1
        if steps > STEPS:
            return -1
        bound, missing = spent, need - covered
        ahead = place
        while missing > 0 and ahead < count:
            node = items[ahead]
            saving = flight[node] * y + fixed[node]
            bound += extra[node] if saving <= missing else extra[node] * missing / saving
            missing -= saving
            ahead += 1
        if missing <= 0 and bound <= budget:
            if need <= covered:
                return 1
            node = items[place]
            taken[node] = True
            covered += flight[node] * y + fixed[node]
            spent += extra[node]
            place += 1
            continue
        while place > 0 and not taken[items[place - 1]]:
            place -= 1
        if place == 0:
            return 0
        node = items[place - 1]
        taken[node] = False
        covered -= flight[node] * y + fixed[node]
        spent -= extra[node]
        # Its likes needn't be tried in its place.
        saved = (extra[node], flight[node], fixed[node])
        while place < count and saved == (extra[items[place]], flight[items[place]], fixed[items[place]]):
            taken[items[place]] = False
            place += 1


@compiled
def extend(
    masks, edges, starts, listed, into, out, entering, leaving, sums, lacking, work, degrees, copies, orders, extra,
    flight, fixed, memory, batch, rate, devices, below, fewest, following, way, copied, numbers, highs, ends, live,
    start, stop,
):  # fmt: skip
    """Fill the rows ``start`` to ``stop``, from the last ideal backwards, of ``fewest`` [ideals, sums of copies + 1].

    That is the fewest devices for all that isn't in an ideal, in stages that stay under ``below`` seconds, by the sum
    of these stages' copies. ``sums`` [degrees, 4, ideals]: seconds, bytes of weights, bytes a micro-batch in flight and
    fixed bytes; ``lacking`` [degrees, ideals]: nodes that haven't this degree. ``work`` [ideals]: the least device
    seconds of an ideal. ``following``, ``way`` and ``copied`` get the ideal that a stage ends with, the number of its
    degree and its copies. ``numbers``, ``highs`` and ``ends``: the first ``live`` entries are of ideals from which the
    rest can be done. Returns the new ``live``, and whether a choice was given up.
    """
    most = fewest.shape[1] - 1
    items = np.empty(orders.shape[2], np.int64)
    taken = np.zeros(orders.shape[2], np.bool_)
    one = np.uint64(1)
    given_up = False
    limit = below * (1 + 1e-12)
    for ideal in range(start, stop, -1):
        before = work[ideal] / limit - 1e-9
        for index in range(live):
            high = numbers[index]
            least, first, last = ends[index]
            if least + 1 + before > devices or high == ideal:
                continue
            if (work[high] - work[ideal]) / limit > devices - least - before + 1e-9:
                continue
            if not within(masks[ideal], highs[index]):
                continue
            for t in range(degrees.shape[0]):
                if lacking[t, high] > lacking[t, ideal]:
                    continue
                compute = sums[t, 0, high] - sums[t, 0, ideal]
                weights = sums[t, 1, high] - sums[t, 1, ideal]
                each = sums[t, 2, high] - sums[t, 2, ideal]
                base = sums[t, 3, high] - sums[t, 3, ideal]
                sent, possible = -1.0, -1
                for d in copies:
                    if first + d > most or least + d * degrees[t] + before > devices:
                        break
                    if compute / d > limit:
                        continue
                    if sent < 0:
                        sent = into[t, ideal] + out[t, high]
                        for place in range(starts[ideal], starts[ideal + 1]):
                            edge = listed[place]
                            node = edges[edge, 1]
                            if not (masks[high, node // 64] >> np.uint64(node % 64)) & one:
                                sent -= entering[t, edge] + leaving[t, edge]
                        sent = max(sent, 0.0) / rate
                    budget = (limit - 4 * (d - 1) / d * weights / batch / rate) * d - sent - compute
                    if budget < 0:
                        continue
                    wanted = (min(last, most - d) + d + d - 1) // d
                    flights = wanted
                    if each * wanted + base > memory:
                        if possible < 0:
                            possible = roof(
                                masks[ideal],
                                masks[high],
                                each,
                                base,
                                flight[t],
                                fixed[t],
                                memory,
                                min(last, most - 1) + 1,
                            )
                        # The most micro-batches in flight that fit: ``good`` do, more than ``flights`` don't.
                        flights = min(wanted, possible)
                        good = 0
                        if base <= memory:
                            good = min(flights, int((memory - base) / each)) if each > 0 else flights
                        while good < flights:
                            y = (good + flights + 1) // 2
                            answer = choose(
                                masks[ideal], masks[high], orders[t, y], extra[t], flight[t], fixed[t], y,
                                each * y + base - memory, budget, items, taken,
                            )  # fmt: skip
                            if answer == 1:
                                good = y
                            else:
                                flights = y - 1
                                given_up = given_up or answer == -1
                    for rest in range(first, min(last, most - d) + 1):
                        s = rest + d
                        if (s + d - 1) // d > flights:
                            break
                        taken_devices = fewest[high, rest] + d * degrees[t]
                        if taken_devices < fewest[ideal, s] and taken_devices + before <= devices:
                            fewest[ideal, s] = taken_devices
                            following[ideal, s] = high
                            way[ideal, s] = t
                            copied[ideal, s] = d
        least, first, last = devices + 1, most + 1, -1
        for s in range(most + 1):
            if fewest[ideal, s] <= devices:
                least = min(least, fewest[ideal, s])
                first = min(first, s)
                last = s
        if last >= 0:
            numbers[live] = ideal
            highs[live] = masks[ideal]
            ends[live, 0], ends[live, 1], ends[live, 2] = least, first, last
            live += 1
    return live, given_up
