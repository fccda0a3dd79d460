"""Compiled: the least seconds of a stage whose blocks must fit together, kept for the next label that asks."""

from __future__ import annotations

import numpy as np

from partita.planner.bits import between
from partita.planner.joint.compiled import compiled

# Choices of options side by side: of larger stages Lagrange's bound is close.
CHOICES = 128
# Stages that are kept, by their number's last bits: of two with the same ones the later.
KEPT = 1 << 16
SECONDS, BYTES, TEMPORARY = 0, 1, 2


@compiled
def weighed(blocks, seconds, fixed, held, temporary, in_flight, free, slopes):
    """The least seconds + λ · bytes, less λ · free, of the best slope λ (a slope of 0 is none); infinite where the
    least bytes don't fit together, with what any block takes beyond them while it runs."""
    best, most, size, beyond = 0.0, 0.0, 0.0, 0.0
    for block in blocks:
        least = smallest = running = np.inf
        for option in range(seconds.shape[1]):
            if seconds[block, option] < np.inf:
                mine = fixed[block, option] + in_flight * held[block, option]
                least = min(least, temporary[block, option])
                smallest, running = min(smallest, mine), min(running, mine + temporary[block, option])
        most, size, beyond = max(most, least), size + smallest, max(beyond, running - smallest)
    if size + beyond > free * (1 + 1e-9):
        return np.inf
    for slope in slopes:
        if slope <= 0:
            continue
        whole = 0.0
        for block in blocks:
            least = np.inf
            for option in range(seconds.shape[1]):
                size = fixed[block, option] + in_flight * held[block, option]
                least = min(least, seconds[block, option] + slope * size)
            whole += least
        best = max(best, whole - slope * (free - most))
    return best


@compiled
def fitting(blocks, seconds, fixed, held, temporary, in_flight, free, slopes):
    """Seconds of blocks [count] in the fastest of ``seconds`` [n, M] that fit into ``free`` bytes: infinite where none
    do, and Lagrange's bound with these ``slopes`` where that would take more than ``CHOICES``; and the work."""
    count, options = blocks.shape[0], seconds.shape[1]
    # Of all blocks from each on the least bytes.
    rest = np.zeros(count + 1)
    whole, size, most = 0.0, 0.0, 0.0
    for at in range(count - 1, -1, -1):
        block = blocks[at]
        best, least = 0, np.inf
        for option in range(options):
            if seconds[block, option] < seconds[block, best]:
                best = option
            if seconds[block, option] < np.inf:
                least = min(least, fixed[block, option] + in_flight * held[block, option])
        rest[at] = rest[at + 1] + least
        whole += seconds[block, best]
        size += fixed[block, best] + in_flight * held[block, best]
        most = max(most, temporary[block, best])
    if size + most <= free or whole == np.inf:
        return whole, 1
    old, new = np.zeros((CHOICES, 3)), np.zeros((CHOICES, 3))
    olds, work = 1, 1
    for at in range(count):
        block, news = blocks[at], 0
        for one in range(olds):
            for option in range(options):
                took = old[one, SECONDS] + seconds[block, option]
                size = old[one, BYTES] + fixed[block, option] + in_flight * held[block, option]
                most = max(old[one, TEMPORARY], temporary[block, option])
                if took == np.inf or size + rest[at + 1] + most > free * (1 + 1e-9):
                    continue
                beaten, kept = False, 0
                for other in range(news):
                    work += 1
                    if new[other, SECONDS] <= took and new[other, BYTES] <= size and new[other, TEMPORARY] <= most:
                        beaten = True
                        break
                if beaten:
                    continue
                for other in range(news):
                    if new[other, SECONDS] < took or new[other, BYTES] < size or new[other, TEMPORARY] < most:
                        new[kept] = new[other]
                        kept += 1
                if kept == CHOICES:
                    return weighed(blocks, seconds, fixed, held, temporary, in_flight, free, slopes), work
                new[kept, SECONDS], new[kept, BYTES], new[kept, TEMPORARY] = took, size, most
                news = kept + 1
        if news == 0:
            return np.inf, work
        old, new, olds = new, old, news
    return old[:olds, SECONDS].min(), work


@compiled
def fitted(small, large, v, in_flight, seconds, fixed, held, temporary, slopes, free, keys, values):
    """The same of the blocks between two sets with the prices of v; ``keys`` [KEPT, words + 1], ``values`` [KEPT]."""
    words = small.shape[0]
    number = np.uint64(v) * np.uint64(65536) + np.uint64(in_flight)
    mixed = number
    for word in range(words):
        mixed = (mixed ^ (large[word] & ~small[word])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    slot = np.int64(mixed & np.uint64(KEPT - 1))
    same = keys[slot, words] == number
    for word in range(words):
        same = same and keys[slot, word] == large[word] & ~small[word]
    if same:
        return values[slot], 1
    keys[slot, words] = number
    for word in range(words):
        keys[slot, word] = large[word] & ~small[word]
    blocks = between(small, large)
    values[slot], work = fitting(blocks, seconds[v], fixed[v], held[v], temporary[v], in_flight, free, slopes)
    return values[slot], work
