"""Copying: from where values lie in files to a tensor in memory, a few MiB at a time.

Files are read and not mapped: what has been read once is not kept, and a disk that fails is an error and no signal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from partita.adapters.checkpoint.boxes import elements
from partita.adapters.checkpoint.catalogue import Entry, Piece, Stored, item_bytes
from partita.adapters.torch.boxes import slices
from partita.errors import InputError
from partita.redistribution.view import Box, intersection, without

# What is read at once; what is read at once even where most of it isn't wanted: a row of a transposed tensor.
READ_BYTES, SPARSE_BYTES = 2**23, 2**20


class Files:
    """The files that are read from, opened once each. Closed at the end of a ``with`` statement."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.open.values():
            os.close(handle)
        self.open = {}

    def read(self, path: str, start_bytes: int, buffer: bytearray) -> None:
        """Fill the buffer. InputError where the file ends before, or can't be read."""
        try:
            if path not in self.open:
                self.open[path] = os.open(path, os.O_RDONLY)
            view, place = memoryview(buffer), start_bytes
            while len(view):
                count = os.preadv(self.open[path], [view], place)
                if count == 0:
                    size = os.stat(path).st_size
                    raise InputError(
                        f"{path}: ends after {size:,} bytes, but bytes up to {start_bytes + len(buffer):,} should be "
                        "there: it is truncated"
                    )
                view, place = view[count:], place + count
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror}") from None


def copy(stored: Stored, target: Tensor, files: Files) -> None:
    """Copy values from a file into a tensor of the same shape, however both are strided. Converts the dtype."""
    assert tuple(target.shape) == stored.shape
    if not target.numel():
        return
    span, item = stored.span_bytes, item_bytes(stored.dtype)
    dense = 2 * prod(stored.shape) * item >= span
    if span <= SPARSE_BYTES or (dense and span <= READ_BYTES):
        buffer = bytearray(span)
        files.read(str(stored.path), stored.start_bytes, buffer)
        found = torch.frombuffer(buffer, dtype=getattr(torch, stored.dtype))
        target.copy_(found.as_strided(stored.shape, stored.strides))
        return
    # The dim that takes the longest steps in the file, halved.
    dim = max(range(len(stored.shape)), key=lambda d: (stored.shape[d] > 1, stored.strides[d]))
    size = stored.shape[dim]
    for start, stop in ((0, size // 2), (size // 2, size)):
        box = tuple((start, stop) if d == dim else (0, n) for d, n in enumerate(stored.shape))
        copy(stored.at(box), target.narrow(dim, start, stop - start), files)


def values(stored: Stored) -> Tensor:
    """The values themselves, in memory: for small tensors."""
    found = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
    with Files() as files:
        copy(stored, found, files)
    return found


def takes(entry: Entry, box: Box) -> Iterator[tuple[Piece, Box]]:
    """From which pieces a box of a dense tensor comes, and which part of it from each: each element once.

    The entry has all elements of the box: an entry of a catalogue that is whole has.
    """
    left = [box] if elements(box) else []
    for piece in entry.pieces:
        rest: list[Box] = []
        for wanted in left:
            common = intersection(wanted, piece.box)
            if common is not None:
                yield piece, common
            rest.extend([wanted] if common is None else without(wanted, common))
        left = rest
        if not left:
            return
    assert not left, (box, left)


def fill(entry: Entry, box: Box, target: Tensor, files: Files) -> None:
    """Copy a box of a dense tensor into a tensor of the box's shape."""
    for piece, common in takes(entry, box):
        copy(piece.at(common), target[slices(common, box)], files)
