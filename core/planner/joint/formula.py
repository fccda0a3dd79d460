"""The step time of chosen stages, in the letters of UniAP (arXiv 2307.16375, section 3).

f_i, b_i are forward and backward seconds of stage i for one micro-batch, p_i = f_i + b_i; of_j, ob_j the transfers of
the boundary after stage j, o_j = of_j + ob_j; c micro-batches; S stages; w_i the micro-batches that 1F1B has in flight
behind stage i, S − i with the usual warm-up; s_i what stage i does once a step (gradients over dp, tied weights, the
update).

    GPipe: Σf + Σb + Σo + (c − 1) · [max(f, of) + max(b, ob)] + max s
    1F1B:  Σp + Σo + (c − 1) · max(p, o, cycle) + max s,   cycle_i = (Σ_{k≥i} p_k + Σ_{j≥i} o_j) / w_i

GPipe's is exact where transfers overlap with computation. In 1F1B a micro-batch's round trip lets stage i take one
micro-batch every cycle_i; where c ≤ w_i no micro-batch waits for another's return and there is no such term. The s_i
are not overlapped with the last backward passes: an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from partita.planner.joint.table import Chosen, JointTable

FORMULAS = {
    "1f1b": "Σp + Σo + (c − 1) · max(p, o, cycle) + max s",
    "gpipe": "Σf + Σb + Σo + (c − 1) · [max(f, of) + max(b, ob)] + max s",
}


@dataclass(frozen=True)
class StageNumbers:
    """One stage: seconds of one micro-batch and of the step's end, bytes on each device at its peak. Held against the
    table's limit, so that what a device has less than that counts as taken."""

    forward: float
    backward: float
    sync: float
    bytes: float


class Stands(Protocol):
    """Where a stage begins, and its shape."""

    @property
    def start(self) -> int: ...
    @property
    def unit(self) -> int: ...
    @property
    def shape(self) -> int: ...


class Took(Protocol):
    """Seconds of a stage."""

    @property
    def forward(self) -> float: ...
    @property
    def backward(self) -> float: ...
    @property
    def sync(self) -> float: ...


@dataclass(frozen=True)
class Terms:
    """The terms of the formula for one answer: the sum, the two maxima (1F1B has one) and the step's end."""

    total: float
    slowest: float
    slowest_backward: float
    sync: float

    def step_seconds(self, micro_batches: int) -> float:
        return self.total + (micro_batches - 1) * (self.slowest + self.slowest_backward) + self.sync


def stage_numbers(table: JointTable, stage: Chosen, behind: int) -> StageNumbers:
    """What a stage takes that has ``behind`` stages after it."""
    prices, v = table.prices, int(table.prices_of[stage.shape, stage.unit])
    options = list(enumerate(stage.options, stage.start))
    first, last = stage.options[0], stage.options[-1]
    forward = float(prices.enter_forward[v, stage.start, first] + prices.leave_forward[v, stage.stop - 1, last])
    backward = float(prices.enter_backward[v, stage.start, first] + prices.leave_backward[v, stage.stop - 1, last])
    sync, fixed, held, temporary = float(prices.base_sync[v]), float(prices.base_bytes[v]), 0.0, 0.0
    for i, m in options:
        forward += float(prices.forward[v, i, m])
        backward += float(prices.backward[v, i, m])
        sync += float(prices.sync[v, i, m] + prices.lent_sync[v, stage.start, i])
        fixed += float(prices.fixed_bytes[v, i, m] + prices.lent_bytes[v, stage.start, i])
        held += float(prices.held_bytes[v, i, m])
        temporary = max(temporary, float(prices.temporary_bytes[v, i, m]))
        if i > stage.start:
            before = stage.options[i - stage.start - 1]
            forward += float(prices.change_forward[v, i, before, m])
            backward += float(prices.change_backward[v, i, before, m])
    return StageNumbers(forward, backward, sync, fixed + table.held(behind) * held + temporary)


def transfer(table: JointTable, stage: Stands, after: Stands) -> tuple[float, float]:
    """Seconds of the boundary between two stages, forward and backward."""
    at = (int(table.crosses[after.unit]), after.start, int(table.port[stage.shape]), int(table.port[after.shape]))
    return float(table.transfer_forward[at]), float(table.transfer_backward[at])


def terms(table: JointTable, stages: Sequence[Chosen]) -> Terms:
    """The formula's terms of an answer."""
    count = len(stages)
    numbers = [stage_numbers(table, stage, count - 1 - at) for at, stage in enumerate(stages)]
    return terms_of(table, stages, numbers, [table.cycle(behind) for behind in range(count)])


def terms_of(table: JointTable, stages: Sequence[Stands], numbers: Sequence[Took], cycles_of: Sequence[float]) -> Terms:
    """The same where the seconds of each stage are known; ``cycles_of``: w of the cycle term, by stages behind."""
    count = len(stages)
    moved = [transfer(table, *pair) for pair in zip(stages[:-1], stages[1:], strict=True)]
    p = [stage.forward + stage.backward for stage in numbers]
    o = [forward + backward for forward, backward in moved]
    total = p[-1]
    cycles = [total / cycles_of[0]]
    for at in reversed(range(count - 1)):
        total = p[at] + (total + o[at])
        cycles.append(total / cycles_of[count - 1 - at])
    sync = max(stage.sync for stage in numbers)
    if table.schedule == "gpipe":
        slowest = max([stage.forward for stage in numbers] + [forward for forward, _ in moved])
        return Terms(total, slowest, max([stage.backward for stage in numbers] + [back for _, back in moved]), sync)
    return Terms(total, max(p + o + cycles), 0.0, sync)


def step_seconds(table: JointTable, stages: Sequence[Chosen]) -> float:
    """Seconds of one training step."""
    return terms(table, stages).step_seconds(table.micro_batches)


def fits(table: JointTable, stages: Sequence[Chosen]) -> bool:
    """Whether no stage takes more than the limit."""
    count = len(stages)
    return all(stage_numbers(table, stage, count - 1 - at).bytes <= table.room for at, stage in enumerate(stages))
