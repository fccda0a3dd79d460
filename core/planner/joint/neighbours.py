"""The answers that differ from one in a single thing: the steps of ``climb``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from partita.planner.joint.stage_ways import Place, Places, StageWays

# Of the shapes of a width, how many of the fastest are tried where a stage gets that width; how far a block goes.
FASTEST, FAR = 2, 8


@dataclass
class Neighbours:
    """The neighbours of the answers of a table."""

    stages: StageWays
    _fast: dict[tuple[int, int, int, int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = self.stages.table
        self.most = min(table.most_stages, table.blocks)
        self.units = table.units.tolist()
        self.of_width: dict[int, list[int]] = {}
        for shape, width in enumerate(self.units):
            self.of_width.setdefault(width, []).append(shape)
        self.least = self.stages.bases.forward + self.stages.bases.backward

    def of(self, places: Places) -> Iterator[Places]:
        """All of them, the small steps first. Whether a stage fits is left to who asks."""
        yield from _blocks(places)
        yield from self._shapes(places)
        yield from self._units(places)
        yield from self._joined(places)
        yield from self._split(places)

    def _shapes(self, places: Places) -> Iterator[Places]:
        """A stage has another shape of its width."""
        for at, place in enumerate(places):
            for shape in self.of_width[self.units[place.shape]]:
                if shape != place.shape:
                    yield (*places[:at], place._replace(shape=shape), *places[at + 1 :])

    def _units(self, places: Places) -> Iterator[Places]:
        """Two neighbours divide their units otherwise, and their blocks: as before, or evenly."""
        for at in range(len(places) - 1):
            (start, cut, unit, one), (_, stop, _, other) = places[at : at + 2]
            width, whole = self.units[one], self.units[one] + self.units[other]
            for more in self.of_width:
                if more != width and more < whole:
                    even = self._even(start, stop, unit, more, whole - more)
                    for moved in dict.fromkeys((cut, even, even - 1, even + 1)):
                        if start < moved < stop:
                            yield from self._pair(places, at, moved, more, whole)

    def _joined(self, places: Places) -> Iterator[Places]:
        """Two stages become one."""
        for at in range(len(places) - 1):
            (start, _, unit, one), (_, stop, _, other) = places[at : at + 2]
            for shape in self._fastest(len(places) - 2 - at, start, stop, unit, self.units[one] + self.units[other]):
                yield (*places[:at], Place(start, stop, unit, shape), *places[at + 2 :])

    def _split(self, places: Places) -> Iterator[Places]:
        """One stage becomes two."""
        if len(places) == self.most:
            return
        for at, (start, stop, unit, shape) in enumerate(places):
            width = self.units[shape]
            for first in self.of_width:
                if first < width and (even := self._even(start, stop, unit, first, width - first)):
                    for cut in range(max(start + 1, even - 1), min(stop, even + 2)):
                        two = (Place(start, cut, unit, shape), Place(cut, stop, unit, shape))
                        yield from self._pair((*places[:at], *two, *places[at + 1 :]), at, cut, first, width)

    def _pair(self, places: Places, at: int, cut: int, width: int, whole: int) -> Iterator[Places]:
        """Stages ``at`` and the next one with ``whole`` units: the first has ``width`` of them and ends at ``cut``."""
        (start, _, unit, _), (_, stop, _, _) = places[at : at + 2]
        behind = len(places) - 1 - at
        for one in self._fastest(behind, start, cut, unit, width):
            for other in self._fastest(behind - 1, cut, stop, unit + width, whole - width):
                first, second = Place(start, cut, unit, one), Place(cut, stop, unit + width, other)
                yield (*places[:at], first, second, *places[at + 2 :])

    def _even(self, start: int, stop: int, unit: int, first: int, second: int) -> int:
        """Where two stages of such widths are cut so that the slower takes least, memory left aside; 0: nowhere."""
        slower = [inf] * (stop - start - 1)
        if slower and first in self.of_width and second in self.of_width:
            prices_of = self.stages.table.prices_of
            ways = prices_of[self.of_width[first], unit], prices_of[self.of_width[second], unit + first]
            one, other = (way[way >= 0] for way in ways)
            if len(one) and len(other):
                before = self.least[one, start, start + 1 : stop].min(axis=0).tolist()
                after = self.least[other, start + 1 : stop, stop].min(axis=0).tolist()
                slower = [max(pair) for pair in zip(before, after, strict=True)]
        least = min(slower, default=inf)
        return start + 1 + slower.index(least) if least < inf else 0

    def _fastest(self, behind: int, start: int, stop: int, unit: int, width: int) -> list[int]:
        """The fastest shapes of a width for a stage, of those that fit."""
        key = (behind, start, stop, unit, width)
        if key not in self._fast:
            prices_of = self.stages.table.prices_of
            found: list[tuple[float, int]] = []
            took = [
                (float(self.least[prices_of[shape, unit], start, stop]), shape)
                for shape in self.of_width.get(width, ()) if prices_of[shape, unit] >= 0
            ]  # fmt: skip
            for least, shape in sorted(took):
                # Least seconds without regard to memory: no later shape is faster than all of these.
                if len(found) >= FASTEST and least >= sorted(found)[FASTEST - 1][0]:
                    break
                if ways := self.stages.ways(behind, Place(start, stop, unit, shape)):
                    found.append((ways[0][0][0] + ways[0][0][1], shape))
            self._fast[key] = [shape for _, shape in sorted(found)[:FASTEST]]
        return self._fast[key]


def _blocks(places: Places) -> Iterator[Places]:
    """A block goes from stage ``a`` to stage ``b``, and all boundaries between move."""
    for a, source in enumerate(places):
        if source.stop - source.start == 1:
            continue
        for b in range(max(0, a - FAR), min(len(places), a + FAR + 1)):
            if b != a:
                low, high, by = (a, b, -1) if a < b else (b, a, 1)
                yield tuple(
                    Place(start + by * (low < at <= high), stop + by * (low <= at < high), unit, shape)
                    for at, (start, stop, unit, shape) in enumerate(places)
                )
