"""Topological orders of a graph of blocks in which a chain of stages may be cut: where the list breaks a model apart.

A stage is a run of the list, so that what may be a stage depends on how blocks without a path between them are listed.
The model's own order is one of many; these few lie far from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.graph import Graph
from partita.planner.branches.tree import order, tree

Edges = Sequence[tuple[int, int]]


def orders(blocks: int, edges: Edges) -> list[list[int]]:
    """Different orders of the blocks, each once: branch by branch as the tree has them, the model's own, level by
    level, and by what the last blocks need, one after another. ``edges``: (maker, reader), the reader's the larger."""
    found = (order(tree(blocks, edges)), list(range(blocks)), _by_level(blocks, edges), _by_need(blocks, edges))
    return [list(one) for one in dict.fromkeys(map(tuple, found))]


def turned(runs: Sequence[Sequence[int]], edges: Edges) -> list[int]:
    """The blocks of each run in another topological order, those that come last in it as early as they can."""
    found: list[int] = []
    for run in runs:
        left = list(run)
        while left:
            inside = set(left)
            waits = {reader for maker, reader in edges if maker in inside}
            found.append(next(block for block in reversed(left) if block not in waits))
            left.remove(found[-1])
    return found


def listed(graph: Graph, blocks: Sequence[int]) -> Graph:
    """The same model with its blocks listed in a topological order."""
    if list(blocks) == sorted(blocks):
        return graph
    place = {graph.blocks[block].name: at for at, block in enumerate(blocks)}
    ops = tuple(sorted(graph.ops, key=lambda op: place[op.block]))
    return replace(graph, blocks=tuple(graph.blocks[block] for block in blocks), ops=ops)


def _by_level(blocks: int, edges: Edges) -> list[int]:
    """Blocks with as many others on the longest path before them are neighbours."""
    level = [0] * blocks
    for maker, reader in sorted(edges, key=lambda edge: edge[1]):
        level[reader] = max(level[reader], level[maker] + 1)
    return sorted(range(blocks), key=lambda block: (level[block], block))


def _by_need(blocks: int, edges: Edges) -> list[int]:
    """Each block comes when what it reads is there, and that no sooner than it must: depth first from the last ones."""
    makers: list[list[int]] = [[] for _ in range(blocks)]
    for maker, reader in edges:
        makers[reader].append(maker)
    read = {maker for maker, _ in edges}
    found: dict[int, None] = {}
    for last in range(blocks):
        stack = [] if last in read else [last]
        while stack:
            left = [maker for maker in makers[stack[-1]] if maker not in found]
            if left:
                stack.append(left[0])
            else:
                found[stack.pop()] = None
    return list(found)
