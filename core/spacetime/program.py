"""A plan lowered onto devices: pieces, transfers, and every device's queue of tasks.

A *piece* is the SPMD code of one stage, stored once however many devices and micro-batches run it. A *task* is one
entry of a device's queue. What a runtime executes, a simulator times, a proof checks are these queues and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

from partita.errors import PlanError
from partita.graph import Loss, Op
from partita.plan import Axis
from partita.redistribution.layout import Interval

# How a local op differs from the op of the model:
#   whole       nothing is cut
#   local       works on pieces, needs nothing from the other devices
#   column      linear layer with its outputs cut
#   row         linear layer with its reduced dim cut: the sum over devices, then the bias
#   vocabulary  embedding or cross entropy with the vocabulary cut
#   queries     causal attention of some of the rows: its mask begins at its device's first
#   product     linear layer with its reduced dim cut: a partial product, the bias is left to "bias"
#   bias        the bias of a product, added to its sum
# and what stands between ops, over the devices of one axis (or its turns); ``convert`` has their backward passes:
#   enter           identity whose gradient is summed
#   sum             sum of a partial value
#   scatter         each its piece of the sum of a partial value
#   gather          the whole of a value of which each device has a piece
#   gather_entered  the same, and the gradient is summed: its readers work on pieces of something else
#   slice           each its piece of a whole value
#   exchange        pieces of one dim for pieces of another
Form = Literal[
    "whole", "local", "column", "row", "vocabulary", "queries", "product", "bias",
    "enter", "sum", "scatter", "gather", "gather_entered", "slice", "exchange",
]  # fmt: skip
COLLECTIVES: frozenset[Form] = frozenset({"enter", "sum", "scatter", "gather", "gather_entered", "slice", "exchange"})

# What a task does. "weight" computes the gradients of parameters that "backward" put off (zero bubble); "reduce"
# averages a stage's gradients over its data-parallel copies. "join" puts together what a turn reads from the parts in
# which it came from a stage whose turns take other samples.
Kind = Literal["forward", "backward", "weight", "send", "receive", "join", "reduce", "update"]
TURNS: frozenset[Kind] = frozenset({"forward", "backward", "weight"})


@dataclass(frozen=True)
class Shard:
    """Which part of a parameter a device holds along one axis: ``dim`` has ``parts`` equal parts, each in ``pieces``.

    ``padded`` is the dim's size after padding (the vocabulary); it equals ``size`` where nothing is padded.
    """

    dim: int
    parts: int
    pieces: int
    size: int
    padded: int
    axis: str = "tensor"

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
    """An op as a device runs it: attributes and shapes are local.

    ``axes`` are the inner axes along which it works on pieces; of a collective (enter, sum, gather …) the one over
    whose devices it goes. Of ``row``, ``column`` and ``vocabulary`` the last is the one that the form speaks of.
    """

    op: Op
    form: Form
    shapes: tuple[tuple[int, ...], ...]
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Region:
    """Consecutive ops of a segment, ``ops[start:stop]``, that run once for each of the ``size`` turns of an axis.

    Co-shard: a turn works on its slices of what the device has, and is computed again in the backward pass, so that
    no more than one turn's activations are ever kept. What ``sum`` ops of that axis give is added up over the turns.
    """

    start: int
    stop: int
    axis: str
    size: int


@dataclass(frozen=True)
class Segment:
    """The ops of one block inside a piece. With ``recompute`` only its inputs are kept for the backward pass; with
    ``offload`` what is kept is in the host's memory until then. ``again`` are runs of its ops, ``ops[start:stop]``,
    that the backward pass computes again, so that nothing is kept but what a run reads and gives.

    ``inputs`` are the values that it reads from outside, ``outputs`` those that others read; parameters are neither.
    """

    block: str
    ops: tuple[LocalOp, ...]
    recompute: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    regions: tuple[Region, ...] = ()
    offload: bool = False
    again: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Piece:
    """A stage's code. ``constants`` depend on no parameter: each stage computes those it needs from the batch.

    ``inputs`` arrive from other stages, ``outputs`` are read by other stages (or are the loss), ``parameters`` maps
    names to how they are cut (None: whole); of ``copies`` another stage is the owner. ``trains``: a gradient flows
    through it, so that it has backward turns. ``partial``: the inner axes over which a parameter's gradient is a
    partial sum at the end of a step, because ops work on pieces of their other inputs.
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
    trains: bool = True
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Transfer:
    """One tensor from one stage to another: a micro-batch's value or gradient, a shared parameter or its gradient.

    ``parts``: the turns of the two stages take unlike samples, so that it goes in parts, messages of their own. Such a
    message has those ``samples`` of the global batch, which are what its dim 0 holds.
    """

    tensor: str
    what: Literal["value", "gradient", "parameter", "parameter_gradient"]
    source: int
    target: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    differentiable: bool = True
    parts: bool = False
    samples: Interval | None = None

    @property
    def backwards(self) -> bool:
        """Whether it belongs to the stream of gradients, which runs against that of values."""
        return self.what in ("gradient", "parameter_gradient")

    def key(self, micro: int | None) -> str:
        """The name of what arrives: of one value each stage that reads it has its own, and so has its gradient.

        ``micro`` counts the turns of the stage that reads it; a part is the same for both.
        """
        at = "" if micro is None else f"@{micro}"
        if self.samples is not None:
            at = f" of samples [{self.samples[0]}, {self.samples[1]})"
        if self.backwards:
            to = f" to stage {self.target}" if self.parts else ""
            return f"gradient of {self.tensor} from stage {self.source}{to}{at}"
        return f"{self.tensor}{at} to stage {self.target}"

    def sent(self, micro: int | None) -> str:
        """The name of what is sent, whole: a value has one where it is made, however many stages read it.

        ``micro`` counts the turns of the stage that makes it.
        """
        if self.what == "value":
            assert micro is not None
            return made(self.tensor, micro)
        at = "" if micro is None else f"@{micro}"
        return self.tensor if self.what == "parameter" else f"gradient of {self.tensor} from stage {self.source}{at}"


@dataclass(frozen=True)
class Task:
    """One entry of a device's queue: what to do, for which micro-batch, with which peer; what it reads, writes, frees.

    ``transfer`` belongs to a send, receive or join; ``gradients`` are the gradient transfers around a backward task,
    those that it reads (their target is its stage) and those that it writes. ``micro`` counts the turns of ``stage``.
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


def made(tensor: str, micro: int) -> str:
    """The name of a value on the device that makes it."""
    return f"{tensor}@{micro}"


def saved(stage: int, micro: int) -> str:
    """The name of what a stage's forward turn keeps for its backward turn."""
    return f"saved of stage {stage}@{micro}"


def put_off_by(stage: int, micro: int) -> str:
    """The name of what a stage's backward turn leaves to its weight turn."""
    return f"put off by stage {stage}@{micro}"


@dataclass(frozen=True)
class Share:
    """What a stage's turns take of a global batch: turn t the t-th run of samples, and of that copy i the i-th.

    The one rule about which samples go where: ``samples`` are those of one copy in one turn, dp × turns × samples the
    global batch, for every stage.
    """

    dp: int
    turns: int
    samples: int

    def number(self, copy: int, turn: int) -> int:
        """Which run of ``samples`` samples of the global batch it is."""
        return turn * self.dp + copy

    def interval(self, copy: int, turn: int) -> Interval:
        """The samples of the global batch that a copy takes in a turn."""
        start = self.number(copy, turn) * self.samples
        return start, start + self.samples

    @property
    def global_batch(self) -> int:
        return self.dp * self.turns * self.samples


@dataclass(frozen=True)
class Place:
    """Where a device stands in a stage: the data-parallel copy, and its number among the devices of the copy.

    ``tensor`` is row-major over the stage's inner axes, of which ``tensor`` is the last and mostly the only one.
    """

    stage: int
    data: int
    tensor: int


@dataclass(frozen=True)
class Program:
    """Everything that devices do in one step. ``queues`` has one tuple of tasks for each device.

    A device has a place in each stage that it serves; where it serves several, these share the batch alike.
    ``shares`` are by stage. ``inner[stage]`` are the axes of space inside one copy of a stage, major first. ``zero``:
    the ZeRO stage of each parameter's state, 0 for those that aren't named.
    """

    pieces: tuple[Piece, ...]
    queues: Mapping[int, tuple[Task, ...]]
    places: Mapping[int, tuple[Place, ...]]
    devices_of: tuple[tuple[int, ...], ...]
    shares: tuple[Share, ...]
    inner: tuple[tuple[Axis, ...], ...]
    zero: Mapping[str, int]
    loss: Loss | None
    shared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def dp(self) -> tuple[int, ...]:
        """The data-parallel copies of each stage."""
        return tuple(share.dp for share in self.shares)

    @cached_property
    def global_batch(self) -> int:
        """The samples of a step, the same for every stage."""
        return self.shares[0].global_batch

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """How many devices hold one copy of each stage."""
        return tuple(prod(axis.size for axis in axes) for axes in self.inner)

    def zeros(self, stage: int, *, copies: bool = True) -> frozenset[int]:
        """The ZeRO stages of what a stage reads; without ``copies`` of what it owns."""
        return self._zeros[copies][stage]

    @cached_property
    def _zeros(self) -> tuple[tuple[frozenset[int], ...], tuple[frozenset[int], ...]]:
        """Of each stage, of what it owns and of what it reads: asked for every device, and parameters are many."""

        def of(piece: Piece, copies: bool) -> frozenset[int]:
            return frozenset(self.zero.get(name, 0) for name in piece.parameters if copies or name not in piece.copies)

        return tuple(of(piece, False) for piece in self.pieces), tuple(of(piece, True) for piece in self.pieces)

    @cached_property
    def loss_stage(self) -> int | None:
        """The stage whose piece computes the loss."""
        if self.loss is None:
            return None
        return next(piece.stage for piece in self.pieces if self.loss.tensor in piece.outputs)

    def place(self, device: int, stage: int) -> Place:
        """The device's place in a stage that it serves."""
        return next(place for place in self.places[device] if place.stage == stage)

    def share(self, device: int) -> Share:
        """What the device takes of the global batch."""
        return self.shares[self.places[device][0].stage]

    def interval(self, device: int, stage: int, turn: int) -> Interval:
        """The samples of the global batch that a device takes in a turn of a stage."""
        return self.shares[stage].interval(self.place(device, stage).data, turn)

    def only_place(self, device: int) -> Place:
        """The place of a device that serves one stage, as frameworks think of it. PlanError where it serves more."""
        if len(self.places[device]) > 1:
            stages = [place.stage for place in self.places[device]]
            raise PlanError(f"device {device} serves the stages {stages}; only the target partita runs such a plan")
        return self.places[device][0]

    def tensor_group(self, device: int, stage: int) -> tuple[int, ...]:
        """Devices that make up one data-parallel copy of the stage, the device's own, in order."""
        width, copy = self.widths[stage], self.place(device, stage).data
        return self.devices_of[stage][copy * width : (copy + 1) * width]

    def data_group(self, device: int, stage: int) -> tuple[int, ...]:
        """Devices that hold the same part of the stage's parameters as this one, in order."""
        return self.devices_of[stage][self.place(device, stage).tensor :: self.widths[stage]]

    def axis_group(self, device: int, stage: int, axis: str) -> tuple[int, ...]:
        """Devices of the copy that differ from this one along one inner axis alone, in order."""
        group, after = self.tensor_group(device, stage), 1
        for found in reversed(self.inner[stage]):
            if found.name == axis:
                own = self.place(device, stage).tensor
                first = own - own // after % found.size * after
                return group[first : first + found.size * after : after]
            after *= found.size
        raise AssertionError(axis)

    def coordinates(self, device: int, stage: int) -> dict[str, int]:
        """The device's coordinate along each inner axis of the stage."""
        rest, found = self.place(device, stage).tensor, {}
        for axis in reversed(self.inner[stage]):
            rest, found[axis.name] = divmod(rest, axis.size)
        return found
