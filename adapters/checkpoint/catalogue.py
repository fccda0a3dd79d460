"""The catalogue of a checkpoint: what it holds and where, whatever its format. Readers make it, writers go by it.

It has no values: of each tensor the dense shape, and the pieces of it that lie in files, each a box of the dense
tensor with its place in a file. *Dense* is the model's own form, as one device has it: padding is in no piece, and each
part of a fused tensor is a piece of its own. Copies of the same elements may be listed: any one is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from partita.adapters.checkpoint.boxes import elements, lacking, shape_of, whole
from partita.adapters.torch.boxes import inside
from partita.errors import InputError
from partita.redistribution.view import Box

# The state that every tensor of the model has: its values, of the highest precision that the checkpoint has of them.
PARAMETER = "parameter"

# The state of a tensor that isn't trained by anybody: a running mean.
BUFFER = "buffer"

# What a catalogue's ``rest`` has words for.
WORDS = ("steps", "samples", "skipped_steps", "lr_scheduler", "client", "loss_scale", "seed")

# Name in the model, and state: "parameter", or the optimizer's word (exp_avg, exp_avg_sq, momentum_buffer).
Key = tuple[str, str]


@dataclass(frozen=True)
class Stored:
    """Values in a file: a strided array of ``dtype`` (torch's name of it) that begins at byte ``start_bytes``.

    ``strides`` are in elements, as torch counts them.
    """

    path: Path
    start_bytes: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, box: Box) -> Stored:
        """The values of a box of this array."""
        skipped = sum(start * stride for (start, _), stride in zip(box, self.strides, strict=True))
        start_bytes = self.start_bytes + skipped * item_bytes(self.dtype)
        return Stored(self.path, start_bytes, self.dtype, shape_of(box), self.strides)

    def transposed(self) -> Stored:
        """The array with its two dims exchanged."""
        return Stored(self.path, self.start_bytes, self.dtype, self.shape[::-1], self.strides[::-1])

    def viewed(self, first: int, shape: Sequence[int]) -> Stored:
        """Of a contiguous array laid flat: the elements from ``first`` on, row-major in a shape."""
        start_bytes = self.start_bytes + first * item_bytes(self.dtype)
        return Stored(self.path, start_bytes, self.dtype, tuple(shape), row_major(shape))

    @property
    def span_bytes(self) -> int:
        """How many bytes of the file the array reaches over, from ``start_bytes`` on."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * item_bytes(self.dtype)


@dataclass(frozen=True)
class Piece:
    """A box of a dense tensor, and where its values are: ``stored`` has the box's shape."""

    box: Box
    stored: Stored

    def at(self, box: Box) -> Stored:
        """Where a box of the dense tensor is, which this piece contains."""
        return self.stored.at(inside(box, self.box))


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, in dense form."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the dense tensor."""
        return prod(self.shape) * item_bytes(self.dtype)


@dataclass(frozen=True)
class Group:
    """A parameter group of the optimizer: its parameters, in order, and its options (lr, betas …)."""

    names: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Catalogue:
    """What a checkpoint holds.

    ``scalars``: state of one number for each parameter (``step``). ``rest`` is what isn't the model's or the
    optimizer's: ``steps`` (of the optimizer), ``samples``, ``skipped_steps``, ``lr_scheduler``, ``client`` (the user's
    own), ``loss_scale``, ``seed``; each may lack. Under other names there is whatever else the files have.
    ``padded``: of tensors that were saved with padding, the padded dim and its size in the files.
    ``aliases``: other names of a tied parameter, each with the name that it is listed under.
    """

    path: Path
    format: str
    tensors: Mapping[Key, Entry]
    scalars: Mapping[Key, Any] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    rest: Mapping[str, Any] = field(default_factory=dict)
    padded: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Entry]:
        """The model's parameters by name."""
        return {name: entry for (name, state), entry in self.tensors.items() if state == PARAMETER}

    @property
    def buffers(self) -> dict[str, Entry]:
        """The model's buffers by name."""
        return {name: entry for (name, state), entry in self.tensors.items() if state == BUFFER}

    @property
    def states(self) -> tuple[str, ...]:
        """The optimizer's states that some parameter has."""
        return tuple(dict.fromkeys(state for _, state in self.tensors if state not in (PARAMETER, BUFFER)))

    @property
    def bytes(self) -> int:
        """Bytes of all tensors in dense form."""
        return sum(entry.bytes for entry in self.tensors.values())


def require_whole(catalogue: Catalogue) -> None:
    """InputError that names the first tensor of which the files lack elements, and where these would be."""
    for (name, state), entry in catalogue.tensors.items():
        missing = lacking(whole(entry.shape), [piece.box for piece in entry.pieces])
        if missing is not None:
            where = ", ".join(f"{start}:{stop}" for start, stop in missing)
            raise InputError(
                f'{catalogue.path}: of "{name}" ({state}, {list(entry.shape)}) {elements(missing):,} elements are in '
                f"none of its files: [{where}]"
            )


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def item_bytes(dtype: str) -> int:
    """Bytes of an element, by torch's name of its dtype. InputError for one that isn't known."""
    if dtype not in ITEM_BYTES:
        raise InputError(f"has a tensor of {dtype}; known: {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]


ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8,
    "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
