"""Small random graphs, and all the ways of cutting one into ordered stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random


def random_edges(random: Random, nodes: int, share: float) -> list[tuple[int, int]]:
    """Edges that lead to larger numbers."""
    return [(low, high) for high in range(nodes) for low in range(high) if random.random() < share]


def cuts(nodes: int, edges: Sequence[tuple[int, int]], most: int) -> Iterator[list[list[int]]]:
    """Every list of 1 to ``most`` stages, none empty, without an edge from a later to an earlier one."""
    for count in range(1, min(nodes, most) + 1):
        for stage_of in product(range(count), repeat=nodes):
            if len(set(stage_of)) == count and all(stage_of[low] <= stage_of[high] for low, high in edges):
                yield [[node for node in range(nodes) if stage_of[node] == stage] for stage in range(count)]
