"""What single stages of a 1F1B table take, looked up: the base path where it fits, else the rows of ``rows``.

For ``climb``, which asks for the same few stages again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from partita.planner.joint.rows import BACKWARD, FORWARD, SYNC, Base, Row, options_of, row
from partita.planner.joint.sharp import Moved, Turns
from partita.planner.joint.table import Chosen, JointTable

# Sums in another order differ by less.
TIE = 1e-9


class Place(NamedTuple):
    """A stage without its options: as ``Chosen``."""

    start: int
    stop: int
    unit: int
    shape: int


Places = tuple[Place, ...]


def places_of(stages: Sequence[Chosen]) -> Places:
    """Stages without their options."""
    return tuple(Place(one.start, one.stop, one.unit, one.shape) for one in stages)


# Seconds, and the label of the row that they are from; None: they are the base path's.
Way = tuple[Turns, np.ndarray | None]


@dataclass
class StageWays:
    """The stages that take less than ``below`` seconds for a micro-batch.

    ``rows`` may be shared by tables that differ in depth alone.
    """

    table: JointTable
    bases: Base
    below: float
    rows: dict[tuple[int, int, int, bool], Row]
    _ways: dict[tuple[int, Place], list[Way]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Lists are read faster one by one.
        self._port, self._crosses = self.table.port.tolist(), self.table.crosses.tolist()

    def ways(self, behind: int, place: Place) -> list[Way]:
        """What a stage may take, the best first; empty where nothing fits."""
        key = (behind, place)
        if key not in self._ways:
            self._ways[key] = self._found(behind, place)
        return self._ways[key]

    def _found(self, behind: int, place: Place) -> list[Way]:
        table, bases, v = self.table, self.bases, int(self.table.prices_of[place.shape, place.unit])
        if v < 0:
            return []
        at, flight, count = (v, place.start, place.stop), table.held(behind), table.micro_batches
        forward, backward = float(bases.forward[at]), float(bases.backward[at])
        if not forward + backward < self.below:
            return []
        if bases.fixed[at] + flight * bases.held[at] + bases.temporary[at] <= table.room:
            return [((forward, backward, float(bases.sync[at])), None)]
        known = self.row(v, behind, place)
        labels = known.labels[known.first[place.stop] : known.first[place.stop + 1]]
        found = [((float(one[FORWARD]), float(one[BACKWARD]), float(one[SYNC])), one) for one in labels]
        return sorted(found, key=lambda way: count * (way[0][0] + way[0][1]) + way[0][2])

    def row(self, v: int, behind: int, place: Place) -> Row:
        """The row that a stage with prices ``v`` is in, found once."""
        table, last = self.table, self.last(behind, place)
        key = (v, table.held(behind), place.start, last)
        if key not in self.rows:
            self.rows[key] = row(table.prices, v, place.start, key[1], table.room, False, self.below, last=last)
        return self.rows[key]

    def last(self, behind: int, place: Place) -> bool:
        """Whether a row holds the stage of all blocks that are left alone. In a graph others have none behind, too."""
        return behind == 0 and place.stop == self.table.blocks

    def moved(self, one: Place, other: Place) -> Moved:
        """The boundary between two stages."""
        at = (self._crosses[other.unit], other.start, self._port[one.shape], self._port[other.shape])
        return float(self.table.transfer_forward[at]), float(self.table.transfer_backward[at])

    def chosen(self, places: Places, behind: Sequence[int], which: Sequence[int]) -> tuple[Chosen, ...]:
        """The stages with the options of their blocks: of each the way that ``which`` says."""
        return tuple(self._chosen(*each) for each in zip(behind, places, which, strict=True))

    def _chosen(self, behind: int, place: Place, which: int) -> Chosen:
        table, v, flight = self.table, int(self.table.prices_of[place.shape, place.unit]), self.table.held(behind)
        (forward, backward, _), label = self.ways(behind, place)[which]
        if label is None:
            below = (forward + backward) * (1 + TIE)
            known = row(table.prices, v, place.start, flight, table.room, False, below, last=self.last(behind, place))
            label = known.labels[known.first[place.stop]]
        last = self.last(behind, place)
        options = options_of(table.prices, v, place.start, place.stop, flight, table.room, False, label, last)
        return Chosen(place.start, place.stop, place.unit, place.shape, options)
