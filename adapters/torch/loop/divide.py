"""How the batches of a copy's ranks become micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.adapters.torch.loop.batch import Shape


@dataclass(frozen=True)
class Slice:
    """Samples ``start`` to ``stop`` of one of the batches."""

    batch: int
    start: int
    stop: int


@dataclass(frozen=True)
class Part:
    """A micro-batch: its shape, and the samples that it consists of."""

    shape: Shape
    slices: tuple[Slice, ...]


def divide(shapes: Sequence[Shape], micro_batches: int, *, apart: bool = False) -> list[Part]:
    """About as many micro-batches as planned from batches of these shapes, in their order, as even as can be.

    Batches of one shape are joined and divided anew. Those of several (padded to different lengths), and all with
    ``apart``, are divided each by itself.
    """
    if not apart and len(set(shapes)) == 1 and (shapes[0].mergeable or len(shapes) == 1):
        total = sum(shape.samples for shape in shapes)
        ends = [(index + 1) * shapes[0].samples for index in range(len(shapes))]
        return [
            Part(shapes[0].of(stop - start), _across(start, stop, ends))
            for start, stop in _evenly(total, micro_batches)
        ]
    each = -(-micro_batches // len(shapes))
    return [
        Part(shape.of(stop - start), (Slice(batch, start, stop),))
        for batch, shape in enumerate(shapes)
        for start, stop in _evenly(shape.samples, each)
    ]


def _evenly(samples: int, parts: int) -> list[tuple[int, int]]:
    parts = min(parts, samples)
    bounds = [index * samples // parts for index in range(parts + 1)]
    return list(zip(bounds, bounds[1:], strict=False))


def _across(start: int, stop: int, ends: Sequence[int]) -> tuple[Slice, ...]:
    """The slices of the batches that a run of samples consists of."""
    found, begin = [], 0
    for batch, end in enumerate(ends):
        low, high = max(start, begin), min(stop, end)
        if low < high:
            found.append(Slice(batch, low - begin, high - begin))
        begin = end
    return tuple(found)
