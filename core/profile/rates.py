"""How fast a device computes and moves bytes, from measurements of single kernels.

    product    2·m·k·n / rate(m, k, n), the rate of near shapes
    attention  executed FLOPs / rate(batch · heads, tokens, head dim), a rate for each pass
    others     bytes / (bytes a second of their class), backward with the bytes that gradients add

A measurement of one kernel holds the time until it starts (``start``), which is taken off; a tenth stays at least.
Rates are geometric means over near shapes, weighted by distance in log₂ of the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Neighbours that a rate is a mean of, and the power with which they lose weight.
NEIGHBOURS, POWER = 8, 4.0
# A product whose rows in memory don't begin at multiples of 16 bytes can't be loaded in whole vectors. That halves its
# rate (padding GPT-2's vocabulary of 50257 to 50304 makes its head about twice as fast); single kernels of such shapes
# aren't in profiles, so this is an assumption.
MISALIGNED, VECTOR_BYTES = 0.5, 16
# Bytes of an update for each element: four float32 values are read, three are written.
ADAM_BYTES = 28.0


@dataclass(frozen=True)
class Shaped:
    """A kernel's sizes and the FLOP/s that it reached, without what went by before it started."""

    sizes: tuple[float, ...]
    flops_per_second: float


@dataclass(frozen=True)
class Rates:
    """Rates of one device in one precision; ``adam`` are (elements, seconds) of an update in float32."""

    products: tuple[Shaped, ...]
    attention_forward: tuple[Shaped, ...]
    attention_backward: tuple[Shaped, ...]
    pointwise_bytes_per_second: float
    norm_bytes_per_second: float
    softmax_bytes_per_second: float
    adam: tuple[tuple[float, float], ...] = ()

    @cached_property
    def _near(self) -> dict[tuple[str, tuple[float, ...]], float]:
        return {}

    def near(self, name: str, sizes: tuple[float, ...]) -> float:
        """FLOP/s of a kernel of the table ``name``, from those that are nearest in shape."""
        key = (name, sizes)
        if key not in self._near:
            self._near[key] = _mean(getattr(self, name), sizes)
        return self._near[key]

    def product_seconds(self, m: float, k: float, n: float, item: int) -> float:
        """Seconds of an [m, k] · [k, n] product."""
        rate = self.near("products", (m, k, n))
        if (k * item) % VECTOR_BYTES or (n * item) % VECTOR_BYTES:
            rate *= MISALIGNED
        return 2.0 * m * k * n / rate

    @cached_property
    def adam_line(self) -> tuple[float, float]:
        """(seconds of any update, seconds of each element more): the line through the two largest that were measured.

        A line, so that what parts of a model take adds up to what they take together. Small updates are latency.
        """
        if len(self.adam) == 1:
            ((elements, seconds),) = self.adam
            return 0.0, seconds / elements
        (x0, y0), (x1, y1) = self.adam[-2:]
        slope = max(0.0, (y1 - y0) / (x1 - x0))
        return max(0.0, y1 - slope * x1), slope


def _mean(table: Sequence[Shaped], sizes: tuple[float, ...]) -> float:
    points = np.array([row.sizes for row in table])
    rates = np.array([row.flops_per_second for row in table])
    far = np.sqrt((np.log2(points / np.maximum(np.array(sizes), 1.0)) ** 2).sum(axis=1)) + 1e-3
    nearest = np.argsort(far, kind="stable")[:NEIGHBOURS]
    weights = far[nearest] ** -POWER
    return float(np.exp((weights * np.log(rates[nearest])).sum() / weights.sum()))


def work_seconds(measured: float, start: float) -> float:
    """What a kernel takes by itself: what was measured less the start, of small ones at least a tenth of it."""
    return max(measured - start, measured / 10)


def bandwidth(rows: Sequence[tuple[float, float]]) -> float | None:
    """Bytes a second of the largest of (bytes, seconds); None for no rows."""
    largest, _ = max(rows, default=(0.0, 0.0))
    return max((size / seconds for size, seconds in rows if size == largest), default=None)
