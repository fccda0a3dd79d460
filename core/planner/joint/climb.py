"""From an answer of the search to the best ones near it under the sharper 1F1B formula (``sharp``).

The search is exact under the stated formula, and its answers are near the best under the sharper one. From them a climb
goes on in steps that each take less (``neighbours``), for every depth of the warm-up. What it ends with fits the
memory; that nothing is better is not proven.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from partita.planner.joint.formula import fits
from partita.planner.joint.neighbours import Neighbours
from partita.planner.joint.rows import Row, base
from partita.planner.joint.sharp import Turns, pipeline_seconds, sharp_seconds
from partita.planner.joint.stage_ways import TIE, Places, StageWays, places_of
from partita.planner.joint.table import Chosen, JointTable
from partita.planner.joint.tidy import tidied

# Answers that one climb looks at, and neighbours of its end that are answers, too.
MOST, BESIDE = 5000, 2


@dataclass(frozen=True)
class Climbed:
    """An answer of a 1F1B table and its seconds under the sharper formula."""

    seconds: float
    table: JointTable
    stages: tuple[Chosen, ...]


def sharpest(table: JointTable, stages: Sequence[Chosen], depths: Sequence[int], below: float = inf) -> list[Climbed]:
    """The best answers near these stages that take less than ``below`` seconds, the fastest first: a few for each
    depth, none for one at which the stages that a climb begins with don't fit."""
    found: list[Climbed] = []
    bases, rows = base(table.prices), dict[tuple[int, int, int, bool], Row]()
    places = places_of(stages)
    for depth in depths:
        # A step takes no less than the turns of its slowest stage.
        deep = replace(table, schedule="1f1b", depth=depth)
        found += Climb(StageWays(deep, bases, below / table.micro_batches * (1 + TIE), rows)).best(places)
        if fits(deep, stages):
            # Its options may be better than those that a climb sees, of the fastest stages.
            found.append(Climbed(sharp_seconds(deep, stages), deep, tuple(stages)))
    return sorted((one for one in found if one.seconds < below), key=lambda one: one.seconds)


class Climb:
    """The climbs of one table, among chains of stages."""

    def __init__(self, ways: StageWays):
        self.ways, self.table, self.neighbours = ways, ways.table, Neighbours(ways)
        self.ahead = [ways.table.ahead(behind) for behind in range(self.neighbours.most)]

    def best(self, places: Places) -> list[Climbed]:
        """The answer from which no step leads on, or the one at which so many were looked at, and the best of its
        neighbours."""
        return [self._climbed(*one) for one in self.climbed(places)]

    def climbed(self, places: Places) -> list[tuple[float, Places]]:
        """The same, with their seconds; none where the first doesn't fit."""
        left, best = MOST, self.seconds(places)
        seen: list[tuple[float, Places]] = []
        better: Places | None = places if best < inf else None
        while better is not None and left > 0:
            places, better = better, None
            seen = [(best, places)]
            for other in self.neighbours.of(places):
                left -= 1
                if (took := self.seconds(other)) < best * (1 - TIE):
                    best, better = took, other
                    break
                if took < inf:
                    seen.append((took, other))
        return heapq.nsmallest(1 + BESIDE, dict.fromkeys(seen))

    def behind(self, places: Places) -> Sequence[int]:
        """For each stage how many come after it."""
        return range(len(places) - 1, -1, -1)

    def seconds(self, places: Places, which: Sequence[int] = (), behind: Sequence[int] | None = None) -> float:
        """The formula's seconds, infinite where a stage doesn't fit; ``which``: of its ways, the first by default;
        ``behind``: as if so many stages lay behind each."""
        turns, behind = [], self.behind(places) if behind is None else behind
        for at, place in enumerate(places):
            known = self.ways.ways(behind[at], place)
            if not known:
                return inf
            turns.append(known[which[at] if which else 0][0])
        return self.step_seconds(turns, places, behind)

    def step_seconds(self, turns: Sequence[Turns], places: Places, behind: Sequence[int]) -> float:
        """The formula's seconds of stages that take so long."""
        moved = [self.ways.moved(*pair) for pair in zip(places[:-1], places[1:], strict=True)]
        return pipeline_seconds(turns, moved, self.ahead, self.table.micro_batches)

    def best_ways(self, best: float, places: Places) -> tuple[float, list[int]]:
        """The way of each stage that is best beside the others', and the seconds; ``best``: those of the first ways."""
        which, behind = [0] * len(places), self.behind(places)
        for at, place in enumerate(places):
            for way in range(1, len(self.ways.ways(behind[at], place))):
                tried = [*which[:at], way, *which[at + 1 :]]
                if (took := self.seconds(places, tried)) < best * (1 - TIE):
                    best, which = took, tried
        return best, which

    def _climbed(self, best: float, places: Places) -> Climbed:
        _, which = self.best_ways(best, places)
        stages = tidied(self.table, self.ways.chosen(places, self.behind(places), which))
        return Climbed(sharp_seconds(self.table, stages), self.table, stages)
