"""Compiled: the dynamic programme over ideals of ``placement``."""

from __future__ import annotations

import numpy as np

from partita.planner.bits import within
from partita.planner.joint.compiled import compiled


@compiled
def divided(masks, groups, weights):
    """Of each ideal the groups of units of which it has some and not all: as places in one list [ideals + 1], that
    list, and the sum of their weights [ideals]. ``groups`` [groups, words]."""
    starts = np.zeros(masks.shape[0] + 1, np.int64)
    sums = np.zeros(masks.shape[0])
    listed = np.zeros(0, np.int64)
    # Counted first, then filled.
    for fill in range(2):
        place = 0
        for ideal in range(masks.shape[0]):
            for group in range(groups.shape[0]):
                some, every = False, True
                for word in range(masks.shape[1]):
                    some = some or (groups[group, word] & masks[ideal, word]) != 0
                    every = every and (groups[group, word] & ~masks[ideal, word]) == 0
                if some and not every:
                    if fill == 1:
                        listed[place] = group
                        sums[ideal] += weights[group]
                    place += 1
            starts[ideal + 1] = place
        if fill == 0:
            listed = np.zeros(place, np.int64)
    return starts, listed, sums


@compiled
def moved(low, high, starts, listed, sums, groups, weights, masks):
    """The weights of the groups of which what is between two ideals has some and not all."""
    found = sums[low] + sums[high]
    for place in range(starts[low], starts[low + 1]):
        group = listed[place]
        # Divided by the smaller ideal; by the larger one too, unless that has all of it.
        whole, untouched = True, True
        for word in range(masks.shape[1]):
            whole = whole and (groups[group, word] & ~masks[high, word]) == 0
            untouched = untouched and (groups[group, word] & masks[high, word] & ~masks[low, word]) == 0
        if not whole:
            found -= 2 * weights[group] if untouched else weights[group]
    return max(found, 0.0)


@compiled
def least_load(unit, masks, table, starts, listed, sums, groups, weights, memory):
    """The least load of an accelerator that has a unit; infinite where none can have it. Arguments as ``extend``'s."""
    word, bit = unit // 64, np.uint64(1) << np.uint64(unit % 64)
    without = np.array([low for low in range(masks.shape[0]) if not masks[low, word] & bit])
    best = np.inf
    for high in range(masks.shape[0]):
        if masks[high, word] & bit:
            for low in without:
                seconds = table[high, 0] - table[low, 0]
                there = table[high, 3] == table[low, 3] and table[high, 2] - table[low, 2] <= memory
                if there and seconds < best and within(masks[low], masks[high]):
                    best = min(best, seconds + moved(low, high, starts, listed, sums, groups, weights, masks))
    return best


@compiled
def improves(best, under, load, more, slower):
    """Whether one accelerator (``more``) or CPU (``slower``) with that load leads from ``best`` to below ``under``."""
    for k in range(under.shape[0] - more):
        for c in range(under.shape[1] - slower):
            limit = under[k + more, c + slower]
            if best[k, c] < limit and load < limit:
                return True
    return False


@compiled
def improve(best, under, load, more, slower, before, low):
    """Lower ``under`` to what ``improves`` asks about, and say in ``before`` where it came from."""
    for k in range(under.shape[0] - more):
        for c in range(under.shape[1] - slower):
            largest = max(best[k, c], load)
            if largest < under[k + more, c + slower]:
                under[k + more, c + slower] = largest
                before[k + more, c + slower, 0], before[k + more, c + slower, 1] = low, slower


@compiled
def extend(
    masks, table, starts, listed, sums, groups, weights, memory, ahead, below, best, before, numbers, lows, live, start,
    stop,
):  # fmt: skip
    """Fill the rows ``start`` to ``stop`` of ``best`` [ideals, accelerators + 1, CPUs + 1]: the least largest load.

    ``table`` [ideals, 4]: seconds on accelerators, which never fall from row to row, seconds on CPUs, bytes, and units
    that can't be on an accelerator. ``ahead`` [accelerators + 1, CPUs + 1]: the most accelerator seconds that those
    which aren't used yet can take over. ``before`` gets the ideal before the last device's units and what that is (0:
    an accelerator, 1: a CPU). Loads over ``below`` aren't looked at. ``numbers`` and ``lows``: the first ``live``
    entries are of ideals that can be done; the new number of them is returned.
    """
    accelerators, cpus = best.shape[1], best.shape[2]
    total = table[-1, 0]
    # What a load must stay under, by what has been used: what is found, or what is asked where the rest can be done.
    under = np.empty((accelerators, cpus))
    for ideal in range(start, stop):
        left = total - table[ideal, 0]
        if left > ahead[0, 0] * (1 + 1e-9):
            continue
        for k in range(accelerators):
            for c in range(cpus):
                under[k, c] = np.nextafter(below, np.inf) if left <= ahead[k, c] * (1 + 1e-9) else -1.0
        for index in range(live - 1, -1, -1):
            low = numbers[index]
            seconds = table[ideal, 0] - table[low, 0]
            slow = table[ideal, 1] - table[low, 1]
            fast = seconds <= below and table[ideal, 3] == table[low, 3] and table[ideal, 2] - table[low, 2] <= memory
            if not (fast or (cpus > 1 and slow <= below)) or not within(lows[index], masks[ideal]):
                continue
            if fast:
                # What is moved is at least what only one of the two ideals divides; no more, where none is by both.
                none = starts[low] == starts[low + 1] or starts[ideal] == starts[ideal + 1]
                apart = none or listed[starts[low + 1] - 1] < listed[starts[ideal]]
                load = seconds + (sums[ideal] + sums[low] if apart else abs(sums[ideal] - sums[low]))
                if load <= below and not apart and improves(best[low], under, load, 1, 0):
                    load = seconds + moved(low, ideal, starts, listed, sums, groups, weights, masks)
                if load <= below and improves(best[low], under, load, 1, 0):
                    improve(best[low], under, load, 1, 0, before[ideal], low)
            if cpus > 1 and slow <= below and improves(best[low], under, slow, 0, 1):
                improve(best[low], under, slow, 0, 1, before[ideal], low)
        found = False
        for k in range(accelerators):
            for c in range(cpus):
                if before[ideal, k, c, 0] >= 0:
                    best[ideal, k, c] = under[k, c]
                    found = True
        if found or ideal == 0:
            numbers[live] = ideal
            lows[live] = masks[ideal]
            live += 1
    return live
