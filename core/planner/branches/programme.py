"""The least seconds of a micro-batch's longest path among all stages of a tree whose own seconds stay under a limit.

GraphPipe's dynamic programme (section 4) over the series-parallel tree, from the model's end back. Its state is how
many stages lie on the longest path behind (so that the micro-batches in flight are known) and the first unit that is
taken. A part in series goes on from what is behind it. Parallel branches all go on from the same, on units of their
own: the longest path is the longer of theirs. A stage is a run of neighbours in a series, parallel parts whole, or
whole branches beside each other; on few devices also the end of the last branch with what comes after all of them.

A stage's seconds are exact where the fastest options fit into memory; elsewhere they are a bound, until an answer used
them and their row is known (``joint.rows``). A transfer is priced as to a stage of the sender's own shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from partita.planner.branches.kernel import beside, stages_before
from partita.planner.branches.traffic import Traffic
from partita.planner.branches.tree import Parallel, Series
from partita.planner.joint.rows import BACKWARD, FORWARD, SYNC, bound
from partita.planner.joint.stage_ways import Place, Places, StageWays

# Points of a series, by block; between each two what lies there: a block (None) or parallel branches.
Points = tuple[int, ...]
Inside = tuple[Parallel | None, ...]
# A series, the stages behind it, and the unit before which its own end.
_Key = tuple[Points, Inside, int, int]
# Up to so many units a stage may hold the end of a branch and what comes after: with more, a stage each is better.
FEW = 8


@dataclass(frozen=True)
class _Way:
    """Through parallel branches: these, from that state. ``tail``: the stage of the end of the last branch and what
    comes after, which ends at the point ``end``; None: the branches begin at the next point."""

    part: Parallel
    h: int
    q: int
    tail: Place | None = None
    end: int = 0


@dataclass
class _Run:
    """A series that ends before unit ``start[1]`` with ``start[0]`` stages behind: [points, H + 1, U + 1]."""

    taken: np.ndarray
    choices: np.ndarray
    opened: dict[tuple[int, int, int], _Way] = field(default_factory=dict)


@dataclass
class _Open:
    """Parallel branches from a state: what all of them from each on take, [branches + 1, H + 1, U + 1], and by branch
    and state how."""

    taken: np.ndarray
    ways: dict[tuple[int, int, int], tuple[int, int, int, int]]


class Programme:
    """The questions about one table, under any limits."""

    def __init__(self, ways: StageWays, traffic: Traffic, tree: Series):
        self.ways, self.table, self.traffic = ways, ways.table, traffic
        self.points, self.inside = _points(tree)
        table, n = ways.table, ways.table.blocks
        self.deep = min(n, table.all_units)
        flights = [table.held(h) for h in range(self.deep)]
        self.flights = sorted(set(flights))
        self.flight_of = np.array([self.flights.index(flight) for flight in flights])
        self.later = 1.0 / max(1, table.micro_batches - 1)
        self.arrays = (
            np.ascontiguousarray(table.units, np.int64), np.ascontiguousarray(table.prices_of, np.int64),
            np.ascontiguousarray(table.crosses, np.int64), traffic.leaving, traffic.own_share, *traffic.links,
        )  # fmt: skip
        self._first()
        self._bounded: set[tuple[int, int]] = set()
        self._runs: dict[_Key, _Run] = {}
        self._opens: dict[tuple[Parallel, int, int], _Open] = {}

    def _first(self) -> None:
        """What is known before any row: [W, V, n, n + 1]."""
        bases, table = self.ways.bases, self.table
        base_bytes, base_sync = table.prices.base_bytes[:, None, None], table.prices.base_sync[:, None, None]

        def from_to(sums: np.ndarray) -> np.ndarray:
            return sums[:, None, :] - sums[:, :-1, None]

        p = bases.forward + bases.backward
        seconds, weighed, exact = [], [], []
        for flight in self.flights:
            inside = bases.fixed + flight * bases.held + bases.temporary <= table.room
            least = base_bytes + from_to(bases.least_fixed) + flight * from_to(bases.least_held)
            possible = np.isfinite(p) & (least * (1 - 1e-9) <= table.room)
            later = np.where(inside, bases.sync, base_sync + from_to(bases.least_sync)) * self.later
            seconds.append(np.where(possible, p, inf))
            weighed.append(np.where(possible, p + np.where(possible, later, 0.0), inf))
            exact.append(inside)
        self.seconds, self.weighed, self.exact = np.stack(seconds), np.stack(weighed), np.stack(exact)

    def least(self, limit: float) -> tuple[float, Places] | None:
        """The least seconds of the longest path where every stage's and transfer's seconds (with a share of what it
        does at the step's end) stay under ``limit``, and the stages in the order of their blocks."""
        while True:
            self.limit = limit
            self._runs.clear()
            self._opens.clear()
            key = (self.points, self.inside, 0, self.table.all_units)
            run = self._run(*key)
            ends = run.taken[0, :, 0]
            if not ends.min() < inf:
                return None
            found: list[tuple[Place, int]] = []
            self._trace(key, 0, int(ends.argmin()), 0, found)
            found.sort()
            if self._known(found):
                return float(ends.min()), tuple(place for place, _ in found)

    def slowest(self, places: Places, behind: list[int]) -> float:
        """The largest of the stages' weighed seconds."""
        of = self.table.prices_of
        return max(
            float(self.weighed[self.flight_of[b], of[p.shape, p.unit], p.start, p.stop])
            for p, b in zip(places, behind, strict=True)
        )

    def _known(self, found: list[tuple[Place, int]]) -> bool:
        """Whether all seconds are exact; where not, more about these stages is found."""
        known = True
        for place, behind in found:
            v, w = int(self.table.prices_of[place.shape, place.unit]), int(self.flight_of[behind])
            if not self.exact[w, v, place.start, place.stop]:
                known = False
                self._refine(v, w, behind, place)
        return known

    def _refine(self, v: int, w: int, behind: int, place: Place) -> None:
        """A better bound of all stages with these prices, and where there is one, the row."""
        if (v, w) not in self._bounded:
            self._bounded.add((v, w))
            low = bound(self.table.prices, v, self.flights[w], self.table.room) * (1 - 1e-9)
            for array in (self.seconds, self.weighed):
                array[w, v] = np.where(self.exact[w, v], array[w, v], np.maximum(array[w, v], low))
            return
        known, start, n = self.ways.row(v, behind, place), place.start, self.table.blocks
        for stop in range(n if self.ways.last(behind, place) else start + 1, n + 1):
            if self.exact[w, v, start, stop]:
                continue
            labels = known.labels[known.first[stop] : known.first[stop + 1]]
            taken = labels[:, FORWARD] + labels[:, BACKWARD]
            weighed = taken + labels[:, SYNC] * self.later
            at = int(weighed.argmin()) if len(weighed) else -1
            self.seconds[w, v, start, stop] = taken[at] if at >= 0 else inf
            self.weighed[w, v, start, stop] = weighed[at] if at >= 0 else inf
            self.exact[w, v, start, stop] = True

    def _run(self, points: Points, inside: Inside, h: int, q: int) -> _Run:
        """A series, from ``h`` stages behind and the units before ``q`` free; its seconds are its own."""
        key = (points, inside, h, q)
        if key in self._runs:
            return self._runs[key]
        shape = (len(points), self.deep + 1, self.table.all_units + 1)
        run = _Run(np.full(shape, inf), np.full((*shape, 2), -1, dtype=np.int64))
        run.taken[-1, h, q] = 0.0
        where = np.array(points)
        for at in range(len(points) - 2, -1, -1):
            part = inside[at]
            if part is not None:
                self._through(run, points, at, part)
            stages_before(
                run.taken, run.choices, at, where, self.seconds, self.weighed, self.flight_of, *self.arrays, self.limit
            )
        self._runs[key] = run
        return run

    def _through(self, run: _Run, points: Points, at: int, part: Parallel) -> None:
        """From every state behind parallel branches, through each of them."""
        for h, q in np.argwhere(np.isfinite(run.taken[at + 1])).tolist():
            self._enter(run, at, float(run.taken[at + 1, h, q]), _Way(part, h, q))
        if self.table.all_units > FEW:
            return
        last = part.branches[-1]
        cuts = _points(last)[0][:-1]
        for end in range(at + 2, len(points)):
            for cut, start in enumerate(cuts):
                left = Parallel((*part.branches[:-1], *([Series(last.items[:cut])] if cut else [])))
                taken, choices = run.taken[[end, end]], np.full((2, *run.choices.shape[1:]), -1, dtype=np.int64)
                taken[0] = inf
                stages_before(
                    taken, choices, 0, np.array([start, points[end]]), self.seconds, self.weighed, self.flight_of,
                    *self.arrays, self.limit,
                )  # fmt: skip
                for h, q in np.argwhere(np.isfinite(taken[0])).tolist():
                    tail = Place(start, points[end], q, int(choices[0, h, q, 1]))
                    self._enter(run, at, float(taken[0, h, q]), _Way(left, h, q, tail, end))

    def _enter(self, run: _Run, at: int, seconds: float, way: _Way) -> None:
        """From a state that was reached in so many seconds, through branches to the point before them."""
        here = run.taken[at]
        took = seconds + self._open(way.part, way.h, way.q).taken[0]
        for high, begin in np.argwhere(took < here).tolist():
            here[high, begin] = took[high, begin]
            run.choices[at, high, begin] = -1
            run.opened[at, high, begin] = way

    def _open(self, part: Parallel, h: int, q: int) -> _Open:
        key = (part, h, q)
        if key in self._opens:
            return self._opens[key]
        count, shape = len(part.branches), (self.deep + 1, self.table.all_units + 1)
        taken = np.full((count + 1, *shape), inf)
        taken[count, h, q] = 0.0
        ways: dict[tuple[int, int, int], tuple[int, int, int, int]] = {}
        for first in range(count - 1, -1, -1):
            for after in range(first + 1, count + 1):
                if (first, after) == (0, count) and count > 1:
                    continue
                have = taken[after]
                points, inside = _joined(part, first, after)
                each = np.full((shape[1], *shape), inf)
                for begin in np.flatnonzero(np.isfinite(have).any(axis=0)).tolist():
                    each[begin] = self._run(points, inside, h, begin).taken[0]
                found, came = taken[first].copy(), np.full((*shape, 3), -1, dtype=np.int64)
                beside(have, each, found, came)
                for high, begin in np.argwhere(found < taken[first]).tolist():
                    ways[first, high, begin] = (after, *came[high, begin].tolist())
                taken[first] = found
        self._opens[key] = _Open(taken, ways)
        return self._opens[key]

    def _trace(self, key: _Key, at: int, h: int, q: int, found: list[tuple[Place, int]]) -> None:
        """The stages of a series from a point and a state on."""
        points, _, behind, start = key
        run = self._runs[key]
        while at < len(points) - 1:
            if (end := int(run.choices[at, h, q, 0])) >= 0:
                shape = int(run.choices[at, h, q, 1])
                found.append((Place(points[at], points[end], q, shape), h - 1))
                at, h, q = end, h - 1, q + int(self.table.units[shape])
                continue
            way, first = run.opened[at, h, q], 0
            opened = self._opens[way.part, way.h, way.q]
            while first < len(way.part.branches):
                after, high, begin, other = opened.ways[first, h, q]
                self._trace((*_joined(way.part, first, after), way.h, begin), 0, other, q, found)
                first, h, q = after, high, begin
            at, h, q = at + 1, way.h, way.q
            if way.tail is not None:
                found.append((way.tail, h - 1))
                at, h, q = way.end, h - 1, q + int(self.table.units[way.tail.shape])
        assert (h, q) == (behind, start)


def _points(series: Series) -> tuple[Points, Inside]:
    """The points of a series whose blocks are numbered in its order."""
    points: list[int] = [_first(series)]
    inside: list[Parallel | None] = []
    for item in series.items:
        if isinstance(item, int):
            points.append(item + 1)
            inside.append(None)
        else:
            points.append(_points(item.branches[-1])[0][-1])
            inside.append(item)
    return tuple(points), tuple(inside)


def _first(series: Series) -> int:
    item = series.items[0]
    return item if isinstance(item, int) else _first(item.branches[0])


def _joined(part: Parallel, first: int, after: int) -> tuple[Points, Inside]:
    """One branch; or several beside each other as one run that isn't cut."""
    if after == first + 1:
        return _points(part.branches[first])
    return (_first(part.branches[first]), _points(part.branches[after - 1])[0][-1]), (None,)
