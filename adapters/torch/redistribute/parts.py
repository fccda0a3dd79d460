"""Parts of an array, which go through a redistribution one after another, so that no step's buffers are large.

Between two neighbouring cuts of a dim, of whatever type the array has on its way, lies a *cell*: every tile of every
type consists of whole cells. A part has the same share of each cell, so all devices are at work on each part. What a
device holds of a part is put together to a small array, and boxes of the tensor become boxes of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

import numpy as np

from partita.redistribution.array_type import ArrayType
from partita.redistribution.steps import Step

# A part's array before a step, the one after it, what is sent and what is received: a few of these at once.
PART_BYTES = 8 * 2**20

Slices = tuple[slice, ...]


class Part:
    """``kept[dim]`` are the intervals of the dim's indices that belong to it, in order and apart, none empty."""

    def __init__(self, kept: Sequence[np.ndarray]):
        self.kept = tuple(kept)

    def packed(self, boxes: np.ndarray) -> np.ndarray:
        """Boxes of the tensor, ``[…, dims, 2]``, in the indices that are left when all others are taken out."""
        found = np.empty_like(boxes)
        for dim, (starts, lengths, before) in enumerate(self._ends):
            if not len(starts):
                found[..., dim, :] = 0
                continue
            at = np.maximum(np.searchsorted(starts, boxes[..., dim, :], side="right") - 1, 0)
            inside = np.clip(boxes[..., dim, :] - starts[at], 0, lengths[at])
            found[..., dim, :] = before[at] + inside
        return found

    def regions(self, box: np.ndarray) -> Iterator[tuple[Slices, Slices]]:
        """Where elements of this part lie in the array of a device that holds the box, and in its packed array."""
        sides = []
        for (start, stop), (starts, lengths, _) in zip(box.tolist(), self._ends, strict=True):
            found = []
            first = int(np.searchsorted(starts + lengths, start, side="right"))
            offset = 0
            for index in range(first, int(np.searchsorted(starts, stop, side="left"))):
                a = max(int(starts[index]), start)
                length = min(int(starts[index] + lengths[index]), stop) - a
                found.append((slice(a - start, a - start + length), slice(offset, offset + length)))
                offset += length
            sides.append(found)
        for chosen in itertools.product(*sides):
            yield tuple(there for there, _ in chosen), tuple(here for _, here in chosen)

    @cached_property
    def _ends(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of each dim, the starts and lengths of the intervals, and how much is kept before each."""
        found = []
        for intervals in self.kept:
            lengths = intervals[:, 1] - intervals[:, 0]
            found.append((intervals[:, 0], lengths, np.cumsum(lengths) - lengths))
        return found


def whole(shape: Sequence[int]) -> Part:
    """The part that has everything."""
    return Part([_share(np.array([[0, size]]), 0, 1) for size in shape])


def parts(steps: Sequence[Step], item_bytes: int) -> list[Part]:
    """The parts in which an array goes through the steps; one, the whole, where everything is small."""
    types = [steps[0].before, *(step.after for step in steps)]
    count = -(-max(kind.largest for kind in types) * item_bytes // PART_BYTES)
    cells = [_cells(types, dim) for dim in range(len(types[0].shape))]
    counts = _counts([int((found[:, 1] - found[:, 0]).max(initial=0)) for found in cells], count)
    return [
        Part([_share(*piece) for piece in zip(cells, chosen, counts, strict=True)])
        for chosen in itertools.product(*(range(number) for number in counts))
    ]


def _counts(rooms: Sequence[int], count: int) -> list[int]:
    """Into how many pieces to cut each dim, so that there are at least ``count``, where ``rooms`` allow.

    The outermost dim that is enough: pieces of that are longer runs of memory than those of an inner one.
    """
    found = [1] * len(rooms)
    enough = [dim for dim, room in enumerate(rooms) if room >= count]
    if enough:
        found[enough[0]] = max(count, 1)
        return found
    for dim in sorted(range(len(rooms)), key=lambda dim: -rooms[dim]):
        found[dim] = max(1, min(rooms[dim], -(-count // prod(found))))
    return found


def _cells(types: Sequence[ArrayType], dim: int) -> np.ndarray:
    """The cells of a dim, ``[cells, 2]``."""
    ends = np.unique(np.concatenate([[0, types[0].shape[dim]], *(kind.boxes[:, dim].ravel() for kind in types)]))
    return np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)


def _share(cells: np.ndarray, index: int, count: int) -> np.ndarray:
    """One of ``count`` shares of every cell; those that are empty left out."""
    if count == 1:
        # One interval and not as many as there are cells.
        cells = np.array([[cells[0, 0], cells[-1, 1]]]) if len(cells) else cells
    lengths = cells[:, 1] - cells[:, 0]
    found = np.stack([cells[:, 0] + lengths * index // count, cells[:, 0] + lengths * (index + 1) // count], axis=1)
    return found[found[:, 1] > found[:, 0]]
