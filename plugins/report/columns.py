"""Where boxes and edges of a graph stand that is drawn in columns (Sugiyama, Tagawa and Toda, 1981).

An edge over several columns has a lane of its own in each column between, so that it never runs through a box. Boxes
and lanes of a column are put in order by the mean place of what they are joined with, and then as near to that as they
can without touching each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

# Sweeps over all columns, there and back; more change no picture that was looked at.
SWEEPS = 4
# Pixels: from a box or lane to the next, a lane, an edge's end from the next one's at the same box.
APART, LANE, PORT = 12, 14, 15

# A box (its number, -1), or the lane of an edge (its number, the column).
Item = tuple[int, int]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Columns:
    """In pixels: ``tops`` and ``heights`` of the boxes; ``ways``: how far down each edge leaves its box, goes through
    the columns between, and comes in; ``height`` of all of it."""

    tops: tuple[float, ...]
    heights: tuple[float, ...]
    ways: tuple[tuple[float, ...], ...]
    height: float


def columns(layers: Sequence[Sequence[int]], edges: Sequence[Pair], least: float) -> Columns:
    """The places of boxes, which are as high as ``least`` or as their edges need. Edges lead to later layers."""
    column = {box: at for at, layer in enumerate(layers) for box in layer}
    items = [[(box, -1) for box in layer] for layer in layers]
    chains: list[list[Item]] = []
    for number, (source, target) in enumerate(edges):
        lanes = [(number, at) for at in range(column[source] + 1, column[target])]
        for lane in lanes:
            items[lane[1]].append(lane)
        chains.append([(source, -1), *lanes, (target, -1)])
    before: dict[Item, list[Item]] = {item: [] for found in items for item in found}
    after: dict[Item, list[Item]] = {item: [] for found in items for item in found}
    for chain in chains:
        for one, two in pairwise(chain):
            after[one].append(two)
            before[two].append(one)
    size = {
        item: max(least, PORT * (1 + max(len(before[item]), len(after[item])))) if item[1] < 0 else float(LANE)
        for item in before
    }
    for near, found in _sweeps(items, before, after):
        _order(found, near, items)
    middle = {item: at for found in items for item, at in zip(found, _stacked(found, size), strict=True)}
    for near, found in _sweeps(items, before, after):
        wanted = [fmean([middle[other] for other in near[item]] or [middle[item]]) for item in found]
        middle.update(zip(found, _apart(found, wanted, size), strict=True))
    first = min(middle[item] - size[item] / 2 for item in middle)
    middle = {item: at - first for item, at in middle.items()}
    boxes = [(box, -1) for box in sorted(column)]
    return Columns(
        tuple(middle[box] - size[box] / 2 for box in boxes), tuple(size[box] for box in boxes),
        tuple(_ways(chains, middle)), max(middle[item] + size[item] / 2 for item in middle),
    )  # fmt: skip


def _sweeps(
    items: list[list[Item]], before: Mapping[Item, list[Item]], after: Mapping[Item, list[Item]]
) -> Iterator[tuple[Mapping[Item, list[Item]], list[Item]]]:
    """Columns from left to right, each with what is joined on its left, and back, with what is on its right."""
    for _ in range(SWEEPS):
        yield from ((before, found) for found in items[1:])
        yield from ((after, found) for found in reversed(items[:-1]))


def _order(found: list[Item], near: Mapping[Item, list[Item]], items: list[list[Item]]) -> None:
    """Sort a column by the mean place of what its items are joined with, in parts of the column that it is in; those
    that are joined with nothing on that side keep their place."""
    place = {item: (at + 0.5) / len(column) for column in items for at, item in enumerate(column)}
    wanted = {item: fmean([place[other] for other in near[item]] or [place[item]]) for item in found}
    found.sort(key=wanted.__getitem__)


def _stacked(found: Sequence[Item], size: Mapping[Item, float]) -> list[float]:
    """The middles of items below each other, around 0."""
    whole = sum(size[item] for item in found) + APART * (len(found) - 1)
    tops, at = [], -whole / 2
    for item in found:
        tops.append(at + size[item] / 2)
        at += size[item] + APART
    return tops


def _apart(found: Sequence[Item], wanted: Sequence[float], size: Mapping[Item, float]) -> list[float]:
    """The middles nearest to those wanted, in squares, of items in this order that don't touch.

    Less what lies between, they only have to ascend: that is isotonic regression, by pooling neighbours.
    """
    between = [0.0]
    for one, two in pairwise(found):
        between.append(between[-1] + (size[one] + size[two]) / 2 + APART)
    pools: list[list[float]] = []
    for want, gap in zip(wanted, between, strict=True):
        pools.append([want - gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    level = [fmean(pool) for pool in pools for _ in pool]
    return [at + gap for at, gap in zip(level, between, strict=True)]


def _ways(chains: Sequence[Sequence[Item]], middle: Mapping[Item, float]) -> Iterator[tuple[float, ...]]:
    """Heights of each edge; the ends at one side of a box in the order of what they lead to."""
    leaves, comes = _ports(chains, middle, 0, 1), _ports(chains, middle, -1, -2)
    for number, chain in enumerate(chains):
        yield (leaves[number], *(middle[item] for item in chain[1:-1]), comes[number])


def _ports(chains: Sequence[Sequence[Item]], middle: Mapping[Item, float], end: int, towards: int) -> dict[int, float]:
    at: dict[Item, list[int]] = {}
    for number, chain in enumerate(chains):
        at.setdefault(chain[end], []).append(number)
    found = {}
    for box, numbers in at.items():
        numbers.sort(key=lambda number: middle[chains[number][towards]])
        for place, number in enumerate(numbers):
            found[number] = middle[box] + PORT * (place - (len(numbers) - 1) / 2)
    return found
