"""The series-parallel tree of a graph of blocks (GraphPipe, section 4: what the planner divides a model along).

Two parts of a graph are in *series* where every block of one comes before every block of the other, and *parallel*
where no edge goes between them. What is neither (the letter N, say) stays a list: there the planner cuts as in a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TypeAlias


@dataclass(frozen=True)
class Parallel:
    """Branches between which no edge goes."""

    branches: tuple[Series, ...]


@dataclass(frozen=True)
class Series:
    """Blocks, by number, and parallel parts, one after another."""

    items: tuple[Item, ...]


Item: TypeAlias = int | Parallel


def tree(blocks: int, edges: Iterable[tuple[int, int]]) -> Series:
    """The tree of so many blocks; ``edges`` are pairs (maker, reader), the reader's number the larger."""
    before = [0] * blocks
    for maker, reader in sorted(edges, key=lambda edge: edge[1]):
        assert maker < reader, (maker, reader)
        before[reader] |= before[maker] | 1 << maker
    return _series(list(range(blocks)), before)


def order(node: Series) -> list[int]:
    """The blocks as the tree has them: branch by branch. A topological order."""
    found: list[int] = []
    for item in node.items:
        found += [item] if isinstance(item, int) else [block for branch in item.branches for block in order(branch)]
    return found


def branches(node: Series) -> bool:
    """Whether anything in it is parallel."""
    return any(isinstance(item, Parallel) for item in node.items)


def _series(blocks: Sequence[int], before: Sequence[int]) -> Series:
    items: list[Item] = []
    for part in _in_series(blocks, before):
        apart = _components(part, before)
        if len(apart) > 1:
            items.append(Parallel(tuple(_series(each, before) for each in apart)))
        else:
            items += part
    return Series(tuple(items))


def _in_series(blocks: Sequence[int], before: Sequence[int]) -> list[list[int]]:
    """The parts of the blocks that come wholly one after another, as many as there are."""
    inside = reduce(or_, (1 << block for block in blocks))
    ordered = sorted(blocks, key=lambda block: ((before[block] & inside).bit_count(), block))
    # What all blocks from each place on have before them.
    after = [-1] * (len(ordered) + 1)
    for at in range(len(ordered) - 1, -1, -1):
        after[at] = and_(after[at + 1], before[ordered[at]])
    found: list[list[int]] = []
    part: list[int] = []
    done = 0
    for at, block in enumerate(ordered):
        if part and done & ~after[at] == 0:
            found.append(sorted(part))
            part = []
        part.append(block)
        done |= 1 << block
    return [*found, sorted(part)]


def _components(blocks: Sequence[int], before: Sequence[int]) -> list[list[int]]:
    """The parts between which no edge goes, that with the least block first."""
    parts: list[tuple[int, list[int]]] = []
    inside = reduce(or_, (1 << block for block in blocks))
    for block in blocks:
        reach, joined = before[block] & inside | 1 << block, [block]
        apart = []
        for mask, part in parts:
            if mask & reach:
                reach, joined = reach | mask, part + joined
            else:
                apart.append((mask, part))
        parts = [*apart, (reach, joined)]
    return sorted((sorted(part) for _, part in parts), key=lambda part: part[0])
