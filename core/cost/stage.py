"""One block in one stage: seconds of its turns, bytes that it takes, seconds of its part of a step's end.

The one place where these are put together: the planner asks for many stages at once and gives arrays, the simulator
asks for one and gives numbers. Everything adds up over a stage's blocks but temporary bytes, of which the largest
counts; what a stage takes once, whatever its blocks, is said apart. Bytes are rounded up block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from partita.cost.block import BlockCost
from partita.cost.exchange import Collective
from partita.cost.state import StateBytes

# A number, or an array of them: of variants of a stage, of blocks, of both.
Values = Any

# How many times a collective goes round and sends all but its own part.
ROUNDS: dict[Collective, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class Group:
    """Devices of one collective: their number, the latency and the bytes a second of the slowest link among them."""

    size: Values
    latency_seconds: Values
    bytes_per_second: Values

    def seconds(self, rounds: Values, size_bytes: Values) -> Values:
        """Of ``rounds`` rounds that take ``size_bytes`` whole in all (``cost.collective``). None for one device."""
        steps, part = self._once
        return rounds * steps * self.latency_seconds + size_bytes * part / self.bytes_per_second

    @cached_property
    def _once(self) -> tuple[Values, Values]:
        """The steps of one round, and what part of the bytes a device sends."""
        return np.ceil(np.log2(self.size)), (self.size - 1) / self.size


@dataclass(frozen=True)
class Sent:
    """The collectives of one block along one axis in each pass: rounds, and bytes for the graph's samples."""

    forward_rounds: int
    forward_bytes: float
    backward_rounds: int
    backward_bytes: float


def sent(cost: BlockCost, axis: str) -> Sent:
    """What a block sends along an axis, whatever the group's size."""
    found: dict[str, list[tuple[int, float]]] = {"forward": [], "backward": []}
    if axis == "tensor":
        found["forward"] += [(2, 2 * size) for size in cost.reductions if size]
        found["backward"] += [(2, 2 * size) for size in cost.entries if size]
    for each in cost.exchanges:
        if each.axis == axis and each.size_bytes:
            found[each.phase].append((ROUNDS[each.kind], ROUNDS[each.kind] * each.size_bytes))
    (fr, fb), (br, bb) = ((sum(n for n, _ in of), sum(size for _, size in of)) for of in found.values())
    return Sent(fr, fb, br, bb)


@dataclass(frozen=True)
class Computed:
    """Seconds of computing one block: forward, backward (with the gradients of weights added to those that are there),
    what the backward pass repeats by itself, what of it gradients of weights take."""

    forward: Values
    backward: Values
    repeated: Values = 0.0
    weight: Values = 0.0


@dataclass(frozen=True)
class Turn:
    """Seconds of one block's turns of a micro-batch. ``weight`` can be taken off the backward turn.

    ``again``: computing that the backward turn does a second time; ``*_collective``: what collectives take.
    """

    forward: Values
    backward: Values
    weight: Values
    again: Values
    forward_collective: Values
    backward_collective: Values


def turn(
    computed: Computed, down: Values, up: Values, gathered: Values, scattered: Values, trains: Values, full: bool
) -> Turn:
    """The turns of a block.

    ``down``, ``up``: collectives inside a copy, forward and backward; ``gathered``: of ZeRO 3's weights, before each
    pass; ``scattered``: of the gradients from ZeRO 2 on. ``trains``: 1, or 0 where no gradient flows through. ``full``:
    the block is computed again before its backward pass.
    """
    again = computed.repeated + (computed.forward if full else 0.0)
    rises = up + scattered + gathered + (down if full else 0.0)
    return Turn(
        forward=computed.forward + down + gathered,
        backward=(computed.backward + again + rises) * trains,
        weight=computed.weight * trains,
        again=again * trains,
        forward_collective=down + gathered,
        backward_collective=rises * trains,
    )


def weight_seconds(trained: Values, frozen: Values, item: float, zero: Values, data: Group) -> tuple[Values, Values]:
    """Seconds in each pass of gathering a block's weights (ZeRO 3), and of its gradients in the backward pass (2, 3).

    ``trained``, ``frozen``: elements on a device; ``item``: bytes of one.
    """
    gathers = (zero == 3) * (trained + frozen > 0)
    scatters = (zero >= 2) * (trained > 0)
    return (
        gathers * data.seconds(1, (trained + frozen) * item),
        scatters * data.seconds(1, trained * item),
    )


def state_bytes_of(trained: Values, frozen: Values, per: StateBytes, zero: Values, dp: Values) -> tuple[Values, ...]:
    """Bytes of a block's parameters, gradients and optimizer state on a device. ``per``: those of one element."""
    shard = np.ceil(trained / dp)
    frozen = np.where(zero >= 3, np.ceil(frozen / dp), frozen)
    return (
        (np.where(zero >= 3, shard, trained) + frozen) * per.parameters,
        np.where(zero >= 2, shard, trained) * per.gradients,
        np.where(zero >= 1, shard, trained) * per.optimizer,
    )


def held_bytes(kept: Values, entering: Values, trains: Values, full: bool) -> Values:
    """Bytes that wait for a micro-batch's backward turn: what automatic differentiation keeps, or what entered."""
    return np.ceil(entering * trains if full else kept)


def temporary_bytes(
    temporary: Values, kept: Values, running: Values, trained: Values, frozen: Values, item: float, zero: Values,
    trains: Values, back: bool,
) -> Values:  # fmt: skip
    """Bytes that exist while a block runs: gradients of its values, what comes ``back`` for them (computed again, or
    from the host), ZeRO's gathered weights and whole gradients. Of a block without backward pass what its largest op
    reads and writes (``running``)."""
    found = temporary + (kept if back else 0.0) + running * (1 - trains)
    return np.ceil(found + (zero >= 2) * trained * item + (zero == 3) * (trained + frozen) * item)


@dataclass(frozen=True)
class Ending:
    """The groups of a step's end: the copies (``data``), all devices that add up gradients of the same parameters
    (``whole``: the copies, and axes inside a copy that divide samples or the sequence), those axes alone (``along``).
    """

    data: Group
    whole: Group
    along: Group

    def seconds(self, size_bytes: Values, zero: Values, rounds: int = 0) -> tuple[Values, Values]:
        """Of adding up gradients of that many bytes, and of gathering what was updated; with ``rounds`` = 1 and no
        bytes the latency, which is paid once a stage.

        ZeRO 0 adds all gradients up, 1 the parts that copies update; from 2 on the backward turns have done it over the
        copies, and the chunks are added up along the other axes. 1 and 2 gather the weights, 3 in every turn.
        """
        reduced = np.where(zero == 0, 2.0, np.where(zero == 1, 1.0, 0.0)) * self.whole.seconds(rounds, size_bytes)
        reduced = reduced + np.where(zero >= 2, 2.0, 0.0) * self.along.seconds(rounds, size_bytes / self.data.size)
        gathers = np.where((zero == 1) | (zero == 2), 1.0, 0.0)
        return reduced, gathers * self.data.seconds(rounds, size_bytes)
