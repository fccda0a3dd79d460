"""A step that is being played in whole units of time, by which a schedule without a closed form finds its order.

Every stage takes the micro-batches of a phase in order, so that how many have begun says which one is next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from partita.schedules.turn import Phase, Turn


class Playing:
    """Lanes at the moment ``now``: their orders so far, and when each is free."""

    def __init__(self, lanes: int):
        self.now = 0
        self.free = [0] * lanes
        self.orders: list[list[Turn]] = [[] for _ in range(lanes)]
        self._ends: dict[tuple[int, Phase], list[int]] = defaultdict(list)

    def begun(self, stage: int, phase: Phase) -> int:
        """How many micro-batches have begun."""
        return len(self._ends[stage, phase])

    def end(self, stage: int, phase: Phase, micro: int) -> float:
        """When this turn ends; infinity if it hasn't begun."""
        ends = self._ends[stage, phase]
        return ends[micro] if micro < len(ends) else float("inf")

    def ended(self, stage: int, phase: Phase, micro: int) -> bool:
        return self.end(stage, phase, micro) <= self.now

    def take(self, lanes: Iterable[int], stage: int, phase: Phase, units: int) -> None:
        """The lanes, which are free, begin the next micro-batch of a phase together."""
        turn = Turn(stage, phase, self.begun(stage, phase))
        end = self.now + units
        self._ends[stage, phase].append(end)
        for lane in lanes:
            self.free[lane] = end
            self.orders[lane].append(turn)

    def wait(self) -> None:
        """Lets time pass until the next turn ends."""
        self.now = min(free for free in self.free if free > self.now)
