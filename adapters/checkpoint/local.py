"""From what a rank's file has to pieces of dense tensors: a part of a parameter, or a flat interval of one (ZeRO)."""

from __future__ import annotations

from collections.abc import Iterator

from partita.adapters.checkpoint.boxes import shape_of
from partita.adapters.checkpoint.catalogue import Piece, Stored
from partita.adapters.checkpoint.target import Part
from partita.adapters.torch.boxes import flat_boxes, inside, moved
from partita.redistribution.view import intersection


def stored_shape(part: Part) -> tuple[int, ...]:
    """The shape of the part as it is stored, padding included."""
    return part.local_shape[::-1] if part.flipped else part.local_shape


def whole_pieces(part: Part, stored: Stored) -> list[Piece]:
    """The pieces of a part that is stored in its own shape."""
    assert stored.shape == stored_shape(part), (part, stored)
    array = stored.transposed() if part.flipped else stored
    return [Piece(dense, array.at(local)) for dense, local in part.boxes]


def flat_pieces(part: Part, start: int, stop: int, stored: Stored) -> Iterator[Piece]:
    """The pieces of the elements ``start`` to ``stop`` of a part laid flat, which are all of ``stored``."""
    assert stored.shape == (stop - start,), (part, start, stop, stored)
    for place, box in flat_boxes(stored_shape(part), start, stop):
        array = stored.viewed(place - start, shape_of(box))
        if part.flipped:
            array, box = array.transposed(), box[::-1]
        for dense, local in part.boxes:
            common = intersection(box, local)
            if common is not None:
                yield Piece(moved(common, local, dense), array.at(inside(common, box)))
