"""Downward-closed sets of nodes (ideals): with a node they have all that it reads from.

Stages in an order, without an edge back, are the differences of a chain of ideals. An ideal is a row of 64-bit words,
one bit a node. Where a graph has too many of them, those along some topological orders stand for all: what is found
among them is a plan, but no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from partita.planner.bits import grow

# More ideals than these make too many pairs for a minute.
MOST = 300_000
# Ideals along topological orders: enough to be near the best, few enough for some seconds.
SAMPLED = 8_000


@dataclass(frozen=True)
class Ideals:
    """``masks`` [ideals, words], the smaller ones first: the empty one is the first, that of all nodes the last."""

    nodes: int
    masks: NDArray[np.uint64]
    complete: bool

    def __len__(self) -> int:
        return len(self.masks)

    def sums(self, values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """For each ideal the sum of its nodes' values [ideals], or [ideals, columns] of values [nodes, columns]."""
        table = np.asarray(values, np.float64)
        return np.concatenate([bits @ table for bits in self._bits()])

    def by(self, values: Sequence[float] | NDArray[np.float64]) -> Ideals:
        """The same ideals, the smaller sums of their nodes' values first; a part still stands before its whole."""
        # Whole numbers, whose sums are exact: a part's sum must not come out larger than the whole's.
        table = np.asarray(values, np.float64)
        whole = np.round(table / max(table.sum(), 1e-300) * 2.0**50)
        return Ideals(self.nodes, self.masks[np.argsort(self.sums(whole), kind="stable")], self.complete)

    def members(self, index: int) -> list[int]:
        """The nodes of an ideal."""
        return np.flatnonzero(unpacked(self.masks[index : index + 1], self.nodes)[0]).tolist()

    def between(self, low: int, high: int) -> list[int]:
        """The nodes of an ideal that a smaller one hasn't."""
        return sorted(set(self.members(high)) - set(self.members(low)))

    def having(self) -> list[int]:
        """For each node how many ideals have it."""
        return [int(count) for count in sum(bits.sum(axis=0) for bits in self._bits())]

    def _bits(self) -> Iterator[NDArray[np.float64]]:
        """Rows of nodes, 0 or 1 each, some at a time."""
        for start in range(0, len(self.masks), 4096):
            yield unpacked(self.masks[start : start + 4096], self.nodes).astype(np.float64)


def unpacked(masks: NDArray[np.uint64], nodes: int) -> NDArray[np.uint8]:
    """Rows of words as rows of nodes, 0 or 1 each."""
    return np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :nodes]


def packed(rows: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Rows of nodes as rows of words [rows, words]."""
    words = max(1, -(-rows.shape[1] // 64))
    wide = np.zeros((len(rows), words * 64), np.bool_)
    wide[:, : rows.shape[1]] = rows
    return np.packbits(wide, axis=1, bitorder="little").view(np.uint64)


def ideals(nodes: int, edges: Sequence[tuple[int, int]], most: int = MOST) -> Ideals:
    """All ideals of a graph whose edges lead to larger numbers; a sample where there are more than ``most``."""
    found = all_ideals(nodes, edges, most)
    return sample(nodes, edges) if found is None else found


def all_ideals(nodes: int, edges: Sequence[tuple[int, int]], most: int) -> Ideals | None:
    """The same; None where there are more than ``most``."""
    sources = np.zeros((nodes, nodes), np.bool_)
    for source, target in edges:
        sources[target, source] = True
    masks, finished = grow(packed(sources), most)
    return Ideals(nodes, masks, True) if finished else None


def rising(nodes: int, edges: Sequence[tuple[int, int]]) -> Iterator[Ideals]:
    """A few ideals, then more where there are many, then all, or at least as many as a sample has.

    What is best among some says what the best among more can't exceed, and is there when the time is over.
    """
    yield sample(nodes, edges, 2 * nodes)
    found = ideals(nodes, edges)
    if found.complete and len(found) > 3 * SAMPLED:
        yield sample(nodes, edges)
    yield found


def sample(nodes: int, edges: Sequence[tuple[int, int]], most: int = SAMPLED) -> Ideals:
    """The ideals along topological orders: depth first, breadth first, by number, then at random from a fixed seed."""
    random = np.random.default_rng(0)
    numbers = np.arange(nodes)
    ranks = [numbers, random.permutation(nodes), *(random.permutation(nodes) for _ in range(max(0, most // nodes - 4)))]
    orders = [_order(nodes, edges, rank, recent) for rank in ranks[:2] for recent in (1, 0, -1)]
    orders += [_order(nodes, edges, rank, 1) for rank in ranks[2:]]
    rows = np.zeros((len(orders) * nodes + 1, nodes), np.bool_)
    for index, order in enumerate(orders[: max(1, most // nodes)]):
        place = np.empty(nodes, np.int64)
        place[order] = numbers
        rows[index * nodes + 1 : (index + 1) * nodes + 1] = place[None, :] <= numbers[:, None]
    masks = np.unique(packed(rows), axis=0)
    sizes = unpacked(masks, nodes).sum(axis=1, dtype=np.int64)
    return Ideals(nodes, np.ascontiguousarray(masks[np.argsort(sizes, kind="stable")]), False)


def _order(nodes: int, edges: Sequence[tuple[int, int]], rank: NDArray[np.int64], recent: int) -> list[int]:
    """A topological order: of those that could be next the one that became so last (1) or first (-1), or by rank."""
    waits = [0] * nodes
    targets: list[list[int]] = [[] for _ in range(nodes)]
    for source, target in edges:
        waits[target] += 1
        targets[source].append(target)
    ready = [(0, int(rank[node]), node) for node in range(nodes) if not waits[node]]
    heapify(ready)
    found: list[int] = []
    while ready:
        node = heappop(ready)[2]
        found.append(node)
        for target in targets[node]:
            waits[target] -= 1
            if not waits[target]:
                heappush(ready, (-recent * len(found), int(rank[target]), target))
    return found
