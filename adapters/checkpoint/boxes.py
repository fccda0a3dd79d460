"""Which elements of a tensor a device or a file has, as boxes: the arithmetic of resharding, without any values.

A *box* is a half-open interval for each dim of the model's own, dense tensor. A part that is cut along a dim of several
parts (a fused tensor) is several boxes; a flat interval of a tensor (ZeRO) is a few. Padding is in no box.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from partita.redistribution.view import Box, intersection


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return tuple((0, size) for size in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """The shape of the box's elements."""
    return tuple(stop - start for start, stop in box)


def elements(box: Box) -> int:
    """How many elements the box has."""
    return prod(shape_of(box))


def lacking(wanted: Box, boxes: Sequence[Box]) -> Box | None:
    """A box of wanted elements that none of the boxes has; None where they have all."""
    if not elements(wanted):
        return None
    found = [common for box in boxes if (common := intersection(wanted, box)) is not None]
    cuts = [
        sorted({start, stop, *(end for box in found for end in box[dim])}) for dim, (start, stop) in enumerate(wanted)
    ]
    covered = np.zeros(tuple(len(ends) - 1 for ends in cuts), dtype=bool)
    places = [{end: index for index, end in enumerate(ends)} for ends in cuts]
    for box in found:
        covered[tuple(slice(place[a], place[b]) for place, (a, b) in zip(places, box, strict=True))] = True
    if covered.all():
        return None
    cell = np.argwhere(~covered)[0]
    return tuple((ends[index], ends[index + 1]) for ends, index in zip(cuts, cell, strict=True))
