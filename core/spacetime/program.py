"""A plan lowered onto devices: pieces, transfers, and every device's queue of tasks.

A *piece* is the SPMD code of one stage, stored once however many devices and micro-batches run it. A *task* is one
entry of a device's queue. What a runtime executes, a simulator times, a proof checks are these queues and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from partita.graph import Loss, Op

# How a local op differs from the op of the model:
#   whole       nothing is cut
#   local       works on pieces, needs nothing from the other devices
#   column      linear layer with its outputs cut
#   row         linear layer with its reduced dim cut: the sum over devices, then the bias
#   vocabulary  embedding or cross entropy with the vocabulary cut
#   enter       identity whose gradient is summed over devices
#   sum         sum over devices of a partial value
#   gather      the whole of a value of which each device has a piece, because the model returns it
Form = Literal["whole", "local", "column", "row", "vocabulary", "enter", "sum", "gather"]

# What a task does. "reduce" averages a stage's gradients over its data-parallel copies.
Kind = Literal["forward", "backward", "send", "receive", "reduce", "update"]


@dataclass(frozen=True)
class Shard:
    """Which part of a parameter a tensor-parallel rank holds: ``dim`` has ``parts`` equal parts, each in ``pieces``.

    ``padded`` is the dim's size after padding (the vocabulary); it equals ``size`` where nothing is padded.
    """

    dim: int
    parts: int
    pieces: int
    size: int
    padded: int

    def intervals(self, piece: int) -> list[tuple[int, int]]:
        """Half-open intervals of the dim that the piece holds, one for each part; the last ones may be cut short."""
        length = self.padded // self.parts // self.pieces
        found = []
        for part in range(self.parts):
            start = part * (self.padded // self.parts) + piece * length
            found.append((min(start, self.size), min(start + length, self.size)))
        return found


@dataclass(frozen=True)
class LocalOp:
    """An op as a device runs it: attributes and shapes are local; ``cut`` is the size of the group that shares it."""

    op: Op
    form: Form
    shapes: tuple[tuple[int, ...], ...]

    @property
    def communicates(self) -> bool:
        return self.form in ("row", "vocabulary", "enter", "sum", "gather")


@dataclass(frozen=True)
class Segment:
    """The ops of one block inside a piece. With ``recompute`` only its inputs are kept for the backward pass.

    ``inputs`` are the values that it reads from outside, ``outputs`` those that others read; parameters are neither.
    """

    block: str
    ops: tuple[LocalOp, ...]
    recompute: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """A stage's code. ``constants`` depend on no parameter: each stage computes those it needs from the batch.

    ``inputs`` arrive from other stages, ``outputs`` are read by other stages (or are the loss), ``parameters`` maps
    names to how they are cut (None: whole); of ``copies`` another stage is the owner.
    """

    stage: int
    constants: tuple[LocalOp, ...]
    segments: tuple[Segment, ...]
    batch: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Shard | None]
    copies: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transfer:
    """One tensor from one stage to another: a micro-batch's value or gradient, a shared parameter or its gradient."""

    tensor: str
    what: Literal["value", "gradient", "parameter", "parameter_gradient"]
    source: int
    target: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    differentiable: bool = True

    @property
    def backwards(self) -> bool:
        """Whether it belongs to the stream of gradients, which runs against that of values."""
        return self.what in ("gradient", "parameter_gradient")

    def key(self, micro: int | None) -> str:
        """The name of what is transferred: gradients of one value differ by the stage that they come from."""
        at = "" if micro is None else f"@{micro}"
        if self.backwards:
            return f"gradient of {self.tensor} from stage {self.source}{at}"
        return f"{self.tensor}{at}"


@dataclass(frozen=True)
class Task:
    """One entry of a device's queue: what to do, for which micro-batch, with which peer; what it reads, writes, frees.

    ``transfer`` belongs to a send or receive; ``gradients`` are the gradient transfers around a backward task, those
    that it reads (their target is its stage) and those that it writes.
    """

    kind: Kind
    stage: int
    micro: int | None = None
    transfer: Transfer | None = None
    gradients: tuple[Transfer, ...] = ()
    peer: int | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a device stands: its stage and its coordinates in the stage's mesh."""

    stage: int
    data: int
    tensor: int


@dataclass(frozen=True)
class Program:
    """Everything that ``devices`` devices do in one step. ``queues`` has one tuple of tasks for each device."""

    pieces: tuple[Piece, ...]
    queues: Mapping[int, tuple[Task, ...]]
    places: Mapping[int, Place]
    devices_of: tuple[tuple[int, ...], ...]
    dp: tuple[int, ...]
    tp: tuple[int, ...]
    micro_batches: int
    samples: int
    zero: int
    loss: Loss | None
    shared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def loss_stage(self) -> int | None:
        """The stage whose piece computes the loss."""
        if self.loss is None:
            return None
        return next(piece.stage for piece in self.pieces if self.loss.tensor in piece.outputs)

    def tensor_group(self, device: int) -> tuple[int, ...]:
        """Devices that share the pieces of the device's stage and data-parallel copy, in order."""
        place = self.places[device]
        return tuple(d for d in self.devices_of[place.stage] if self.places[d].data == place.data)

    def data_group(self, device: int) -> tuple[int, ...]:
        """Devices that hold the same parameters as this one, in order."""
        place = self.places[device]
        return tuple(d for d in self.devices_of[place.stage] if self.places[d].tensor == place.tensor)
