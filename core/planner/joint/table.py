"""What the joint search sees of a problem: numbers. Nothing here knows graphs, clusters or frameworks.

A *shape* is how a stage may use its devices (say dp=2, tp=4, ZeRO-1), an *option* how a block runs in it (say, with
recomputation). Devices are counted in *units* and dealt out in their order: a stage that begins at unit q has the next
``units[shape]``. *Prices* are what blocks cost; a shape has other prices where its groups cross nodes or stand on
other devices, so ``prices_of[shape, q]`` says which. A *port* is all of a shape that a transfer between stages asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

# Of the six items of a stage's bytes each is rounded up when a plan states them.
ROUNDING_BYTES = 0.0


@dataclass(frozen=True)
class Prices:
    """V ways to run n blocks with M options each: seconds and bytes on one device, of one micro-batch.

    [V, n, M]: ``forward``, ``backward`` (infinite where a block doesn't have the option), ``fixed_bytes`` (state),
    ``held_bytes`` (of a micro-batch in flight), ``temporary_bytes`` (while the block runs), ``sync`` (seconds once a
    step), ``enter_*`` and ``leave_*`` (where the block is the first or the last of its stage).
    [V, n, M, M]: ``change_*`` from the option of block i − 1 to that of block i, inside a stage; unused at i = 0.
    [V]: ``base_bytes`` (and what the devices have less than the limit), ``base_sync``. [V, n, n]: ``lent_*`` of block i
    in a stage that begins with block s, at [v, s, i]: what it uses of parameters that an earlier stage owns.
    """

    forward: np.ndarray
    backward: np.ndarray
    fixed_bytes: np.ndarray
    held_bytes: np.ndarray
    temporary_bytes: np.ndarray
    sync: np.ndarray
    enter_forward: np.ndarray
    enter_backward: np.ndarray
    leave_forward: np.ndarray
    leave_backward: np.ndarray
    change_forward: np.ndarray
    change_backward: np.ndarray
    base_bytes: np.ndarray
    base_sync: np.ndarray
    lent_bytes: np.ndarray
    lent_sync: np.ndarray


@dataclass(frozen=True)
class JointTable:
    """A problem for one number of micro-batches c and one schedule.

    ``units``, ``port``: [K], of each shape. ``prices_of``: [K, U], −1 where a stage of the shape can't begin there.
    ``crosses``: [U + 1], whether a boundary before unit q is between nodes (0 or 1; the ends are unused).
    ``transfer_forward``, ``transfer_backward``: [2, n + 1, P, P], seconds of the boundary before block j, from port to
    port, by ``crosses``. ``memory_limit``: bytes of the largest device. ``depth``: how many more micro-batches than
    1F1B needs go ahead over each boundary.
    """

    prices: Prices
    units: np.ndarray
    port: np.ndarray
    prices_of: np.ndarray
    crosses: np.ndarray
    transfer_forward: np.ndarray
    transfer_backward: np.ndarray
    memory_limit: float
    micro_batches: int
    most_stages: int
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    depth: int = 0

    @cached_property
    def least_units(self) -> np.ndarray:
        """[V]: the units of the smallest shape that has these prices somewhere; infinite where none has."""
        found = np.full(len(self.prices.forward), np.inf)
        for shape, at in enumerate(self.prices_of):
            had = at[at >= 0]
            found[had] = np.minimum(found[had], float(self.units[shape]))
        return found

    @property
    def used(self) -> np.ndarray:
        """[V]: whether a stage can have these prices."""
        return np.isfinite(self.least_units)

    @property
    def stages_at_most(self) -> int:
        """How many stages fit the blocks and the units."""
        return min(self.blocks, self.most_stages, self.all_units // int(self.units.min()))

    @property
    def blocks(self) -> int:
        return self.prices.forward.shape[1]

    @property
    def all_units(self) -> int:
        return self.prices_of.shape[1]

    def ahead(self, behind: int) -> int:
        """w without the end of the step: micro-batches in flight in the stage with ``behind`` stages after it."""
        return behind + 1 + self.depth * behind

    def held(self, behind: int) -> int:
        """w: the micro-batches that such a stage holds."""
        return self.micro_batches if self.schedule == "gpipe" else min(self.micro_batches, self.ahead(behind))

    def cycle(self, behind: int) -> float:
        """w of the cycle term, infinite where no micro-batch waits for another's return."""
        if self.schedule == "gpipe" or self.micro_batches <= self.ahead(behind):
            return float("inf")
        return float(self.ahead(behind))

    @cached_property
    def room(self) -> float:
        """Bytes that a stage may take before its items are rounded up."""
        return self.memory_limit - ROUNDING_BYTES


@dataclass(frozen=True)
class Chosen:
    """One stage of an answer: blocks ``start`` … ``stop`` − 1, its first unit, its shape, the option of each block."""

    start: int
    stop: int
    unit: int
    shape: int
    options: tuple[int, ...]
