"""From seconds to pixels, and the ticks of the time axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

# Pixels of a short turn, so that a number of two digits fits into it; what a page may have at least and at most.
TURN, LEAST, MOST = 14, 1000, 3000
# Pixels from one tick to the next, about.
TICK = 110

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True)
class Scale:
    """``seconds`` lie on ``pixels``."""

    seconds: float
    pixels: int

    def x(self, seconds: float) -> float:
        """Pixels from the left."""
        return seconds / self.seconds * self.pixels

    def ticks(self) -> list[tuple[float, str]]:
        """Seconds of the ticks and what stands beside them, with its unit. Steps are 1, 2 or 5 times a power of ten."""
        least = self.seconds * TICK / self.pixels
        power = 10.0 ** floor(log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
        size, unit = next((unit for unit in UNITS if step * 5 >= unit[0]), UNITS[-1])
        count = floor(self.seconds / step * (1 + 1e-9))
        return [(index * step, f"{index * step / size:.10g} {unit}") for index in range(count + 1)]


def scale(seconds: float, turns: Iterable[float]) -> Scale:
    """A step's scale: wide enough for numbers in most of its turns, whose seconds are given, but not without end."""
    lengths = sorted(length for length in turns if length > 0)
    if not lengths or seconds <= 0:
        return Scale(seconds if seconds > 0 else 1.0, LEAST)
    short = lengths[len(lengths) // 5]
    return Scale(seconds, min(MOST, max(LEAST, ceil(seconds / short * TURN))))
