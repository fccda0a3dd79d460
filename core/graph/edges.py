"""The graph of blocks, and that of stages: who reads what whom made.

A value that every stage computes for itself (``graph.constant``) makes no edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from partita.graph.constant import constant_ops
from partita.graph.model import Graph


def block_edges(graph: Graph) -> dict[tuple[str, str], tuple[str, ...]]:
    """For each pair (maker, reader) of blocks the values that go from one to the other, in the order in which they are
    made. Pairs are in the order of the makers, then of the readers."""
    place = {block.name: index for index, block in enumerate(graph.blocks)}
    found: dict[tuple[str, str], list[str]] = {}
    free = constant_ops(graph)
    for op in graph.ops:
        for name in () if op.name in free else op.outputs:
            for reader in graph.readers.get(name, ()):
                if reader != op.block:
                    found.setdefault((op.block, reader), []).append(name)
    pairs = sorted(found, key=lambda pair: (place[pair[0]], place[pair[1]]))
    return {pair: tuple(found[pair]) for pair in pairs}


def stage_edges(edges: Iterable[tuple[str, str]], stages: Sequence[Iterable[str]]) -> tuple[tuple[int, int], ...]:
    """The pairs (maker, reader) of stages between whose blocks there is an edge, in order. ``stages`` are the names of
    each one's blocks."""
    stage_of: Mapping[str, int] = {block: index for index, blocks in enumerate(stages) for block in blocks}
    found = {(stage_of[maker], stage_of[reader]) for maker, reader in edges}
    return tuple(sorted(pair for pair in found if pair[0] != pair[1]))


def paths_behind(edges: Sequence[tuple[int, int]], stages: int) -> list[int]:
    """For each stage the stages on the longest path that begins with it. Readers come later in the list than makers."""
    found = [1] * stages
    for maker, reader in sorted(edges, reverse=True):
        found[maker] = max(found[maker], 1 + found[reader])
    return found
