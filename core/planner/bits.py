"""Compiled loops over sets of nodes as 64-bit words."""

from __future__ import annotations

import numpy as np

from partita.planner.joint.compiled import compiled


@compiled
def within(small, large):
    """Whether a set is a part of another."""
    for word in range(small.shape[0]):  # noqa: SIM110 (compiled)
        if small[word] & ~large[word]:
            return False
    return True


@compiled
def meets(some, small, large):
    """Whether a set has some of the nodes that ``large`` has and ``small`` hasn't."""
    for word in range(some.shape[0]):  # noqa: SIM110 (compiled)
        if some[word] & large[word] & ~small[word]:
            return True
    return False


@compiled
def between(small, large):
    """The nodes that ``large`` has and ``small`` hasn't, ascending."""
    found, count = np.zeros(64 * small.shape[0], np.int64), 0
    for word in range(small.shape[0]):
        inside, node = large[word] & ~small[word], word * 64
        while inside:
            if inside & np.uint64(1):
                found[count] = node
                count += 1
            inside >>= np.uint64(1)
            node += 1
    return found[:count]


@compiled
def wider(array, rows):
    """The array with zeros behind it, to so many rows."""
    found = np.zeros((rows, *array.shape[1:]), array.dtype)
    found[: array.shape[0]] = array
    return found


@compiled
def grow(sources, most):
    """All ideals [found, words], the smaller ones first, and whether that were all: it stops at ``most``.

    ``sources`` [nodes, words]: what each node reads from, nodes of smaller numbers only. Each ideal is made once, from
    the one without its node of the largest number.
    """
    nodes, words = sources.shape
    masks = np.zeros((min(most, 1024), words), np.uint64)
    # The first has no node: any is larger.
    largest = np.zeros(masks.shape[0], np.int64)
    largest[0] = -1
    found = 1
    done = 0
    while done < found:
        for node in range(largest[done] + 1, nodes):
            closed = True
            for word in range(words):
                if sources[node, word] & ~masks[done, word]:
                    closed = False
                    break
            if not closed:
                continue
            if found == most:
                return masks[:found], False
            if found == masks.shape[0]:
                rows = min(most, 2 * found)
                masks, largest = wider(masks, rows), wider(largest, rows)
            masks[found] = masks[done]
            masks[found, node // 64] |= np.uint64(1) << np.uint64(node % 64)
            largest[found] = node
            found += 1
        done += 1
    return masks[:found], True
