"""What the planner of ``placement`` moves as one: nodes that must be, or may as well be, on one device.

As in the authors' own preparation of a graph (throughput-dp/dp.cpp): the nodes of a colour are one unit; backward nodes
without a forward partner get a place among the forward ones by the mirror images of their edges; units on a circle of
such edges are one; and a unit that takes no time and has one neighbour joins it. The last step loses nothing but where
a unit's bytes are what doesn't fit: what the neighbour's device must do and send only falls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partita.workload.graph import topological
from partita.workload.placement_file import PlacementFile

# Seconds that count as none: the authors' 1e-6 milliseconds.
NONE = 1e-9


@dataclass(frozen=True)
class Units:
    """``members``: the nodes of each unit, the units in an order in which ``edges`` lead forward.

    ``moving``: the seconds of moving an output, by the set of units that have it or read it. A device that holds some
    of these units and not all of them moves it once.
    """

    members: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    moving: Mapping[tuple[int, ...], float]


def units(file: PlacementFile) -> Units:
    """The units of a file."""
    nodes = file.graph.nodes
    labels = {colour: index for index, colour in enumerate(dict.fromkeys(node.colour for node in nodes))}
    unit = [labels[node.colour] for node in nodes]
    forward = {unit[n] for n, node in enumerate(nodes) if not node.backward}
    order = [(low, high) for low, high in file.graph.edges if not nodes[high].backward]
    order += [
        (high, low) for low, high in file.graph.edges
        if nodes[low].backward and not {unit[low], unit[high]} <= forward
    ]  # fmt: skip
    unit = _circles_fused(unit, order)
    while (joined := _joined(file, unit, order)) is not None:
        unit = joined
    names = sorted(set(unit))
    pairs = sorted(_pairs([names.index(label) for label in unit], order))
    place = {names[old]: new for new, old in enumerate(topological(file.graph.path, list(map(str, names)), pairs))}
    numbered = [place[label] for label in unit]
    members: list[list[int]] = [[] for _ in names]
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for n, label in enumerate(numbered):
        members[label].append(n)
    for low, high in file.graph.edges:
        readers[low].add(numbered[high])
    moving: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for n, others in readers.items():
        if nodes[n].moving_seconds and others != {numbered[n]}:
            moving[tuple(sorted({numbered[n], *others}))] += nodes[n].moving_seconds
    return Units(tuple(map(tuple, members)), tuple(sorted(_pairs(numbered, order))), dict(moving))


def _pairs(unit: list[int], edges: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """The edges between different units."""
    return {(unit[low], unit[high]) for low, high in edges if unit[low] != unit[high]}


def _circles_fused(unit: list[int], order: Iterable[tuple[int, int]]) -> list[int]:
    """Units on a circle become one: the strongly connected components (Kosaraju)."""
    ahead, behind = defaultdict(list), defaultdict(list)
    for low, high in _pairs(unit, order):
        ahead[low].append(high)
        behind[high].append(low)
    finished: dict[int, None] = {}
    seen: set[int] = set()
    for first in dict.fromkeys(unit):
        stack = [(first, iter(ahead[first]))] if first not in seen else []
        seen.add(first)
        while stack:
            label, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                finished[stack.pop()[0]] = None
            else:
                seen.add(following)
                stack.append((following, iter(ahead[following])))
    fused: dict[int, int] = {}
    for first in reversed(finished):
        reached = [first] if first not in fused else []
        while reached:
            label = reached.pop()
            fused[label] = first
            reached += [other for other in behind[label] if other not in fused]
    return [fused[label] for label in unit]


def _joined(file: PlacementFile, unit: list[int], order: Iterable[tuple[int, int]]) -> list[int] | None:
    """With the units joined that take no time and have one neighbour; None where there is none."""
    busy = {
        unit[n] for n, node in enumerate(file.graph.nodes)
        if node.accelerator_seconds is None or max(node.accelerator_seconds, node.cpu_seconds) >= NONE
    }  # fmt: skip
    near: defaultdict[int, set[int]] = defaultdict(set)
    for low, high in _pairs(unit, [*order, *file.graph.edges]):
        near[low].add(high)
        near[high].add(low)
    into: dict[int, int] = {}
    for label in dict.fromkeys(unit):
        if label not in busy and len(near[label]) == 1:
            (other,) = near[label]
            if other not in into:
                into[label] = other
    return [into.get(label, label) for label in unit] if into else None
