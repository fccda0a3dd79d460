"""Which boxes of a dense parameter a rank's own tensor is: a piece of it, its parts, a flat chunk of that, transposed.

A checkpoint speaks of the dense tensor, as one device has it. A rank may hold a piece along one dim (of a fused tensor
one interval of each part), with rows that only pad it, stored transposed by Megatron's layers, and of that laid flat
the chunk of its data-parallel copy. ``parts_of`` gives views, so that what is written to them is written to the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from torch import Tensor

from partita.adapters.torch.stage import local_parameter_shape
from partita.redistribution.view import Box
from partita.spacetime.program import Shard


def parts_of(
    tensor: Tensor, shape: tuple[int, ...], shard: Shard | None, piece: int, *, flipped: bool = False,
    chunk: tuple[int, int] | None = None,
) -> Iterator[tuple[Box, Tensor]]:  # fmt: skip
    """A rank's tensor as boxes of the dense one, of shape ``shape``, each with the view that holds it.

    ``tensor`` is the rank's piece as stored (``flipped``: transposed), or, with ``chunk``, the elements
    ``[chunk[0], chunk[1])`` of that laid flat; what it has beyond them, and padding, is in no box.
    """
    local = local_parameter_shape(shape, shard)
    for box, view in _stored(tensor, local[::-1] if flipped else local, chunk):
        if flipped:
            box, view = box[::-1], view.t()
        if shard is None:
            yield box, view
            continue
        dim, (start, stop) = shard.dim, box[shard.dim]
        for dense, own in shard_boxes(shape, shard, piece):
            begin, end = max(start, own[dim][0]), min(stop, own[dim][1])
            if begin < end:
                common = (*box[:dim], (begin, end), *box[dim + 1 :])
                yield moved(common, own, dense), view[slices(common, box)]


def shard_boxes(shape: Sequence[int], shard: Shard | None, piece: int) -> list[tuple[Box, Box]]:
    """What one device's part of a parameter has: pairs of a box of the dense tensor and the same box of the part.

    ``shape`` is the dense one. One pair for each of the shard's parts; those that are padding alone are left out.
    """
    whole = tuple((0, size) for size in shape)
    if shard is None:
        return [(whole, whole)]
    each = shard.padded // shard.parts // shard.pieces
    pairs = []
    for part, (start, stop) in enumerate(shard.intervals(piece)):
        if start < stop:
            dense, local = list(whole), list(whole)
            dense[shard.dim] = (start, stop)
            local[shard.dim] = (part * each, part * each + stop - start)
            pairs.append((tuple(dense), tuple(local)))
    return pairs


def moved(box: Box, here: Box, there: Box) -> Box:
    """A box that lies in ``here``, where it lies in ``there``, which is the same elements in other coordinates."""
    return tuple((a - h + t, b - h + t) for (a, b), (h, _), (t, _) in zip(box, here, there, strict=True))


def inside(box: Box, outer: Box) -> Box:
    """The box in the coordinates of one that contains it."""
    return tuple((a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True))


def slices(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where a box's elements are in an array of a box that contains it."""
    return tuple(slice(start, stop) for start, stop in inside(box, outer))


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, Box]]:
    """The elements ``[start, stop)`` of a tensor laid flat (row-major), as boxes in that order, each with the flat
    place where it begins: at most two for each dim but the first, and one."""
    if start >= stop:
        return
    if not shape:
        yield 0, ()
        return
    row, inner = prod(shape[1:]), shape[1:]
    first, last = -(-start // row), stop // row
    # Rows that are not there whole; where both ends lie in one row, that one alone.
    ends = [(last, start, stop)] if first > last else [(first - 1, start, first * row), (last, last * row, stop)]
    for index, (row_index, a, b) in enumerate(ends):
        if index == 1 and first < last:
            yield first * row, ((first, last), *((0, size) for size in inner))
        for place, box in flat_boxes(inner, a - row_index * row, b - row_index * row):
            yield row_index * row + place, ((row_index, row_index + 1), *box)


def _stored(tensor: Tensor, shape: tuple[int, ...], chunk: tuple[int, int] | None) -> Iterator[tuple[Box, Tensor]]:
    if chunk is None:
        yield tuple((0, size) for size in shape), tensor
        return
    for place, box in flat_boxes(shape, *chunk):
        sizes = [stop - start for start, stop in box]
        begin = place - chunk[0]
        yield box, tensor[begin : begin + prod(sizes)].view(sizes)
