"""What a profile says about blocks: seconds and kept bytes by micro-batch, interpolated between what was measured.

A measurement of one block alone begins with an idle device: until its first kernel runs, nothing does. In a step the
host is ahead of the device, and that ``start`` is paid once. So a block in a step takes what was measured less it. A
profile bounds the start from both sides (``read``) and doesn't say where between them it is.

Beyond the largest measured micro-batch costs go on in proportion to single kernels, where these were measured: a line
through small micro-batches would go on with what the host takes there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.profile.rates import Rates

# Parameters of a block and of its measurement may differ by this part: biases that one of them lacks.
PARAMETERS = 0.005


@dataclass(frozen=True)
class BlockShape:
    """What tells a block from others. ``kind`` is a word for known ones (``gpt``), ``signature`` a digest of its ops.

    ``parameters`` are those of one device.
    """

    kind: str
    signature: str
    hidden: int
    heads: int
    seq: int
    tp: int
    parameters: int


@dataclass(frozen=True, order=True)
class Sample:
    """One measurement: seconds of a pass of ``micro_batch`` samples, bytes kept from forward to backward."""

    micro_batch: float
    forward_seconds: float
    backward_seconds: float
    kept_bytes: float


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float:
    """Piecewise linear through sorted points; beyond them the nearest two go on, from one alone in proportion."""
    xs = [x for x, _ in points]
    if len(points) == 1:
        return points[0][1] * at / xs[0]
    right = min(max(bisect_right(xs, at), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    value = y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    # Noise may make a line fall below nothing, or below what a smaller micro-batch takes.
    return max(value, points[-1][1]) if at > xs[-1] else max(value, points[0][1] * at / xs[0]) if at < xs[0] else value


@dataclass(frozen=True)
class MeasuredBlock:
    """One block's measurements, by micro-batch in rising order."""

    shape: BlockShape
    samples: tuple[Sample, ...]

    def matches(self, shape: BlockShape) -> bool:
        """The same ops on the same shapes, or a block of the same known kind, sizes and number of parameters."""
        own = self.shape
        if own.tp != shape.tp:
            return False
        if own.signature:
            return own.signature == shape.signature
        near = abs(own.parameters - shape.parameters) <= PARAMETERS * shape.parameters
        return near and (own.kind, own.hidden, own.heads, own.seq) == (shape.kind, shape.hidden, shape.heads, shape.seq)

    def covers(self, micro_batch: float) -> bool:
        """Whether a micro-batch lies in the measured range."""
        return self.samples[0].micro_batch <= micro_batch <= self.samples[-1].micro_batch

    def at(self, micro_batch: float) -> Sample:
        """Interpolated between the neighbours, extrapolated outside."""
        forward, backward, kept = (
            interpolate([(s.micro_batch, getattr(s, name)) for s in self.samples], micro_batch)
            for name in ("forward_seconds", "backward_seconds", "kept_bytes")
        )
        return Sample(micro_batch, forward, backward, kept)


@dataclass(frozen=True)
class Measured:
    """A profile, ready for costs. ``source`` names the file and the device, for messages.

    ``start_forward_seconds``, ``start_backward_seconds``: from the call until the first kernel runs, in each measured
    block. ``threads``: those that a process on the host had; 0: it is no such device.
    """

    source: str
    blocks: tuple[MeasuredBlock, ...]
    rates: Rates | None = None
    start_forward_seconds: float = 0.0
    start_backward_seconds: float = 0.0
    threads: int = 0

    @cached_property
    def _found(self) -> dict[BlockShape, MeasuredBlock | None]:
        return {}

    def find(self, shape: BlockShape | None, threads: int = 1) -> MeasuredBlock | None:
        """The measured block of that shape; None where there is none, or it ran on another number of threads."""
        if shape is None or (self.threads and threads != self.threads):
            return None
        if shape not in self._found:
            self._found[shape] = next((block for block in self.blocks if block.matches(shape)), None)
        return self._found[shape]

    def seconds(self, block: MeasuredBlock, micro_batch: float, issue: float) -> tuple[float, float]:
        """Forward and backward seconds of one of the blocks in a step.

        ``issue``: what the host takes to issue the block's forward pass, twice as long backward; that is no start.
        """
        found = block.at(micro_batch)
        return (
            _started(found.forward_seconds, self.start_forward_seconds, issue),
            _started(found.backward_seconds, self.start_backward_seconds, 2 * issue),
        )

    def kept_bytes(self, shape: BlockShape | None, micro_batch: float) -> float | None:
        """Bytes kept of that many samples; None: not measured. The same on any number of threads."""
        block = self.find(shape, self.threads)
        return None if block is None else block.at(micro_batch).kept_bytes


def _started(measured: float, start: float, issue: float) -> float:
    """What was measured less the start; a block that the host binds takes in a step what it took alone."""
    return max(measured - start, min(measured, issue))
