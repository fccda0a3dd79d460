"""What binds in a plan: the stage that sets the pace and why, and the item of memory that is largest, from its numbers.

The letters are those of ``planner/joint/formula.py``: p = f + b of a stage, o = of + ob of the boundary after it, w the
micro-batches in flight behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum

from partita.plan import Plan, StageCost


@dataclass(frozen=True)
class Pace:
    """Seconds in which a stage can take one micro-batch after another, and which term of the formula that is."""

    seconds: float
    binds: str


def paces(plan: Plan) -> list[Pace]:
    """One a stage: the largest of its computation, its transfer, and in 1F1B the round trip of a micro-batch."""
    costs = plan.predicted.breakdown.stages
    return [_gpipe(cost) if plan.schedule == "gpipe" else _one_f_one_b(plan, index) for index, cost in enumerate(costs)]


def _gpipe(cost: StageCost) -> Pace:
    """max(f, of) + max(b, ob)"""
    forward = max(cost.forward_seconds, cost.transfer_forward_seconds)
    backward = max(cost.backward_seconds, cost.transfer_backward_seconds)
    computes = cost.forward_seconds + cost.backward_seconds
    return Pace(forward + backward, "computation" if forward + backward <= computes else "transfer")


def _one_f_one_b(plan: Plan, index: int) -> Pace:
    """max(p, o, cycle); cycle = (Σ_{k≥i} p_k + Σ_{j≥i} o_j) / w_i exists for more than w_i micro-batches."""
    costs = plan.predicted.breakdown.stages
    cost = costs[index]
    terms = {
        "computation": cost.forward_seconds + cost.backward_seconds,
        "transfer": cost.transfer_forward_seconds + cost.transfer_backward_seconds,
    }
    if plan.stages[index].micro_batches > cost.in_flight:
        trip = fsum(
            c.forward_seconds + c.backward_seconds + c.transfer_forward_seconds + c.transfer_backward_seconds
            for c in costs[index:]
        )
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


def binds(plan: Plan, index: int, limit: Limit | None) -> list[str]:
    """What binds a stage: ``time`` or ``link`` where its pace is the slowest stage's, ``memory`` where hardly any of
    its devices' ``limit`` is left; ``nothing`` otherwise. Without limits memory isn't judged."""
    found, pace = paces(plan), paces(plan)[index]
    said = []
    if pace.seconds >= NEAR_PACE * max(each.seconds for each in found):
        said.append("time" if pace.binds == "computation" else "link")
    size = plan.predicted.breakdown.stages[index].memory.total
    if limit is not None and size >= NEAR_MEMORY * limit(plan.stages[index].devices):
        said.append("memory")
    return said or ["nothing"]


def slowest(plan: Plan) -> int:
    """The index of the stage that sets the pace."""
    found = paces(plan)
    return max(range(len(found)), key=lambda index: found[index].seconds)


def heaviest(plan: Plan) -> tuple[StageCost, str]:
    """The stage with the most memory on each device, and the largest of its items."""
    cost = max(plan.predicted.breakdown.stages, key=lambda stage: stage.memory.total)
    items = cost.memory.items()
    return cost, max(items, key=lambda item: items[item])
