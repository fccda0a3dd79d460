"""Where a device gets the view that it wants: from which others, which elements, and what is summed (SuperScaler,
section 3.3). Nothing here knows of meshes or collectives: conversions and crossings are held against it.

Every element of a wanted view is taken once, or once of each part of a sum. A device prefers what it has itself, then
few sources; of replicas one is used, each by its own readers. What was made need not fit what is wanted:
intervals may be uneven, shifted or empty, and one tensor may be whole in one region and a sum in another.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from partita.errors import PlanError
from partita.redistribution.view import Box, View, intersection, said, without

Producer = tuple[int, View]
Consumer = tuple[int, View]


@dataclass(frozen=True)
class Take:
    """One copy: elements ``interval`` of the array in which ``source`` has ``view`` go to ``into`` of the wanted array.

    Both boxes count from the first element of their array. ``add``: they are added to what is there.
    """

    source: int
    view: View
    interval: Box
    into: Box
    add: bool

    @property
    def region(self) -> Box:
        """The elements of the tensor."""
        return tuple(
            (a + start, b + start) for (a, b), (start, _) in zip(self.interval, self.view.intervals, strict=True)
        )

    @property
    def elements(self) -> int:
        return prod(b - a for a, b in self.interval)


def wanted_parts(view: View, n: int) -> range:
    """Which of n parts make up the view: part j belongs to part ⌊j·m/n⌋ of m, so every part goes to one place.

    From a whole value (n = 1) the first of m takes it and the others are zero.
    """
    return range(-(-view.k * n // view.n), -(-(view.k + 1) * n // view.n))


def materialise(tensor: str, producers: Sequence[Producer], consumers: Sequence[Consumer]) -> list[tuple[Take, ...]]:
    """What each consumer takes, in the order in which it writes; it begins with zeros where it wants part of a sum.

    ``producers`` and ``consumers`` are devices with their views of ``tensor``; a device may have several. PlanError
    names the tensor and the region that nobody made, or that was made both whole and as part of a sum.
    """
    ranks = sorted({len(view.intervals) for _, view in (*producers, *consumers)})
    if not ranks:
        return []
    if len(ranks) > 1:
        raise PlanError(f'tensor "{tensor}": views of {ranks[0]} and of {ranks[1]} dims are no views of one tensor')
    holders: dict[View, list[int]] = {}
    for device, view in producers:
        holders.setdefault(view, []).append(device)
    views = list(holders)
    bounds = np.array([view.intervals for view in views], dtype=np.int64).reshape(len(views), ranks[0], 2)
    positions = _positions(holders, consumers)
    found: list[tuple[Take, ...]] = []
    for index, (device, wanted) in enumerate(consumers):
        if not wanted.elements:
            found.append(())
            continue
        own = np.array(wanted.intervals, dtype=np.int64).reshape(ranks[0], 2)
        meets = np.minimum(bounds[..., 1], own[:, 1]) > np.maximum(bounds[..., 0], own[:, 0])
        near = {views[at]: holders[views[at]] for at in np.flatnonzero(meets.all(axis=1))}
        found.append(_takes(tensor, near, device, positions[index], wanted))
    return found


def _positions(holders: dict[View, list[int]], consumers: Sequence[Consumer]) -> list[int]:
    """The number of each consumer among devices of its like, which says who of equal sources serves it.

    Its like are the replicas of what it has, so that the groups of a mesh stay apart; or those that want the same.
    """
    has: dict[int, int] = {}
    for devices in holders.values():
        for position, device in enumerate(devices):
            has.setdefault(device, position)
    met: Counter[View] = Counter()
    found = []
    for device, view in consumers:
        found.append(has.get(device, met[view]))
        met[view] += 1
    return found


def _takes(tensor: str, holders: dict[View, list[int]], device: int, position: int, wanted: View) -> tuple[Take, ...]:
    """One consumer's, from the views that overlap with what it wants."""
    where = f'tensor "{tensor}": device {device} wants {wanted}'
    _one_value_map(where, list(holders), wanted)
    takes = []
    missing: list[Box] = [wanted.intervals]
    for n in sorted({view.n for view in holders}):
        parts = [{view: holders[view] for view in holders if (view.k, view.n) == (k, n)} for k in range(n)]
        first, missing = _cover(missing, parts[0], device, position)
        here = [box for _, _, box in first]
        # In the order of the parts, whoever holds them: replicas of a sum must be equal to the last bit.
        for k in wanted_parts(wanted, n):
            pieces, left = (first, []) if k == 0 else _cover(here, parts[k], device, position)
            if left:
                raise PlanError(f"{where}, but nobody made part {k} of {n} of {said(left[0])}")
            add = k > wanted_parts(wanted, n).start
            takes += [Take(source, view, view.local(box), wanted.local(box), add) for source, view, box in pieces]
    if missing:
        of = next((view.n for view in holders if intersection(view.intervals, missing[0])), 1)
        part = f"part 0 of {of} of " if of > 1 else ""
        more = f" (and {len(missing) - 1} regions more)" if len(missing) > 1 else ""
        raise PlanError(f"{where}, but nobody made {part}{said(missing[0])}{more}")
    return tuple(takes)


def _one_value_map(where: str, views: Sequence[View], wanted: View) -> None:
    """PlanError where a region was made with two value maps: one of them would be counted on top of the other."""
    if len({view.n for view in views}) < 2:
        return
    inside = [(view, intersection(view.intervals, wanted.intervals)) for view in views]
    for index, (one, box) in enumerate(inside):
        for other, second in inside[:index]:
            both = intersection(box, second) if one.n != other.n and box is not None and second is not None else None
            if both is not None:
                few, many = sorted((one.n, other.n))
                made = "whole" if few == 1 else f"as parts of {few}"
                raise PlanError(f"{where}, but {said(both)} was made {made} and as parts of {many}: it is doubled")


def _cover(
    missing: Sequence[Box], holders: dict[View, list[int]], device: int, position: int
) -> tuple[list[tuple[int, View, Box]], list[Box]]:
    """(source, its view, box) for what can be had of ``missing``, no element twice; and what can't.

    The device's own view first, then always the one that has most of what still lacks.
    """
    left, pieces = list(missing), list[tuple[int, View, Box]]()
    # A view's gain only shrinks as others are taken, so that an old figure is a bound: most are looked at once.
    queue: list[tuple[bool, int, int, View]] = []
    for order, view in enumerate(sorted(holders, key=lambda view: view.intervals)):
        heapq.heappush(queue, (device not in holders[view], -_gain(view, left), order, view))
    while queue and left:
        elsewhere, bound, order, view = heapq.heappop(queue)
        gain = _gain(view, left)
        if not gain:
            continue
        if gain < -bound:
            heapq.heappush(queue, (elsewhere, -gain, order, view))
            continue
        source = holders[view][position % len(holders[view])] if elsewhere else device
        pieces += [
            (source, view, box) for box in (intersection(view.intervals, box) for box in left) if box is not None
        ]
        left = [rest for box in left for rest in without(box, view.intervals)]
    return pieces, left


def _gain(view: View, missing: Sequence[Box]) -> int:
    boxes = (intersection(view.intervals, box) for box in missing)
    return sum(prod(b - a for a, b in box) for box in boxes if box is not None)
