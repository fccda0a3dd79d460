"""What binds in a plan: the stage that sets the pace and why, and the item of memory that is largest, from its numbers.

The letters are those of ``planner/joint/formula.py``: p = f + b of a stage, o = of + ob of the boundary after it, w the
micro-batches in flight behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from partita.plan import Plan, StageCost

if TYPE_CHECKING:
    from partita.simulate.stage_graph import StageGraph


@dataclass(frozen=True)
class Pace:
    """Seconds in which a stage can take one micro-batch after another, and which term of the formula that is."""

    seconds: float
    binds: str


def paces(plan: Plan, stages: StageGraph | None = None) -> list[Pace]:
    """One a stage: the largest of its computation, its transfer, and in 1F1B the round trip of a micro-batch.

    In kfkb that goes to the end of the graph and back, by the way that takes longest; ``stages`` is the graph, without
    which nothing is said of round trips there.
    """
    costs = plan.predicted.breakdown.stages
    if plan.schedule == "gpipe":
        return [_gpipe(cost) for cost in costs]
    return [_in_rounds(plan, index, trip) for index, trip in enumerate(_trips(plan, stages))]


def _trips(plan: Plan, stages: StageGraph | None) -> list[float | None]:
    """Seconds of a micro-batch's way from each stage to the end and back, the stage counted."""
    own = [fsum((*_turns(cost), *_transfers(cost))) for cost in plan.predicted.breakdown.stages]
    if plan.schedule != "kfkb":
        return [fsum(own[index:]) for index in range(len(own))]
    if stages is None:
        return [None] * len(own)
    found = list(own)
    for stage in reversed(range(len(own))):
        found[stage] += max((found[edge.reader] for edge in stages.edges if edge.maker == stage), default=0.0)
    return [*found]


def _turns(cost: StageCost) -> tuple[float, float]:
    return cost.forward_seconds, cost.backward_seconds


def _transfers(cost: StageCost) -> tuple[float, float]:
    return cost.transfer_forward_seconds, cost.transfer_backward_seconds


def _gpipe(cost: StageCost) -> Pace:
    """max(f, of) + max(b, ob)"""
    forward = max(cost.forward_seconds, cost.transfer_forward_seconds)
    backward = max(cost.backward_seconds, cost.transfer_backward_seconds)
    computes = cost.forward_seconds + cost.backward_seconds
    return Pace(forward + backward, "computation" if forward + backward <= computes else "transfer")


def _in_rounds(plan: Plan, index: int, trip: float | None) -> Pace:
    """max(p, o, cycle); cycle = (Σ_{k≥i} p_k + Σ_{j≥i} o_j) / w_i exists for more than w_i micro-batches."""
    cost = plan.predicted.breakdown.stages[index]
    terms = {"computation": sum(_turns(cost)), "transfer": sum(_transfers(cost))}
    if trip is not None and plan.stages[index].micro_batches > cost.in_flight:
        terms["round trip"] = trip / cost.in_flight
    # One stage alone has a round trip that is its computation; the first of equal terms is named.
    name = max(terms, key=lambda term: terms[term])
    if terms[name] <= terms["computation"] * (1 + 1e-9):
        name = "computation"
    return Pace(terms[name], name)


# The bytes that each of some devices may hold.
Limit = Callable[[Iterable[int]], int]
# A stage whose pace or memory is so near the most that there is binds.
NEAR_PACE, NEAR_MEMORY = 0.98, 0.95


def binds(plan: Plan, index: int, limit: Limit | None, stages: StageGraph | None = None) -> list[str]:
    """What binds a stage: ``time`` or ``link`` where its pace is the slowest stage's, ``memory`` where hardly any of
    its devices' ``limit`` is left; ``nothing`` otherwise. Without limits memory isn't judged.
    ``stages`` as of ``paces``."""
    found = paces(plan, stages)
    pace = found[index]
    said = []
    if pace.seconds >= NEAR_PACE * max(each.seconds for each in found):
        said.append("time" if pace.binds == "computation" else "link")
    size = plan.predicted.breakdown.stages[index].memory.total
    if limit is not None and size >= NEAR_MEMORY * limit(plan.stages[index].devices):
        said.append("memory")
    return said or ["nothing"]


def slowest(plan: Plan, stages: StageGraph | None = None) -> int:
    """The index of the stage that sets the pace."""
    found = paces(plan, stages)
    return max(range(len(found)), key=lambda index: found[index].seconds)


def heaviest(plan: Plan) -> tuple[StageCost, str]:
    """The stage with the most memory on each device, and the largest of its items."""
    cost = max(plan.predicted.breakdown.stages, key=lambda stage: stage.memory.total)
    items = cost.memory.items()
    return cost, max(items, key=lambda item: items[item])
