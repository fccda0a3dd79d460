"""Why a simulated step takes another time than the plan predicts: the difference in parts that add up to it.

The planner's formula and the queues are given the same seconds of turns, transfers and the end of a step. What is left
is what the formula can't see: how turns of different lengths fall into each other, what transfers keep waiting, and
that a stage may end its step while others still run turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partita.cluster import Cluster
from partita.plan import Plan
from partita.planner.joint.formula import terms
from partita.planner.words import duration
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.result import Simulation
from partita.simulate.table import chosen

# Parts of a step under which a difference is none.
NONE = 1e-6


@dataclass(frozen=True)
class Difference:
    """Simulated less predicted seconds, and the parts: they add up to it.

    ``costs_seconds``: the plan was predicted with other numbers than this model and cluster have now.
    """

    seconds: float
    costs_seconds: float
    turns_seconds: float
    transfers_seconds: float
    end_seconds: float

    def items(self) -> dict[str, float]:
        """The parts by name."""
        return {"costs": self.costs_seconds, "turns": self.turns_seconds, "transfers": self.transfers_seconds,
                "end": self.end_seconds}  # fmt: skip


def difference(simulation: Simulation, plan: Plan, cluster: Cluster) -> Difference:
    """The parts of the difference. With more than one stage the queues run once more, without bytes to transfer.

    For a plan that no formula speaks of there is one part: whatever predicted it had other numbers.
    """
    costs, table = simulation.costs, simulation.costs.table
    if table is None:
        seconds = simulation.step_seconds - plan.predicted.step_seconds
        return Difference(seconds, seconds, 0.0, 0.0, 0.0)
    formula = terms(table, chosen(table))
    whole = formula.step_seconds(table.micro_batches)
    pipeline, turns, simulated = whole - formula.sync, whole - formula.sync, simulation.pipeline_seconds
    if table.blocks > 1:
        none = np.zeros_like(table.transfer_forward)
        bare = terms(replace(table, transfer_forward=none, transfer_backward=none), chosen(table))
        turns = bare.step_seconds(table.micro_batches) - bare.sync
        timings = execute(simulation.program, costs.seconds, lambda transfer: 0.0, Fabric(cluster))
        simulated = Simulation(simulation.program, costs, timings).pipeline_seconds
    return Difference(
        seconds=simulation.step_seconds - plan.predicted.step_seconds,
        costs_seconds=whole - plan.predicted.step_seconds,
        turns_seconds=simulated - turns,
        transfers_seconds=(simulation.pipeline_seconds - simulated) - (pipeline - turns),
        end_seconds=(simulation.step_seconds - simulation.pipeline_seconds) - formula.sync,
    )


def sentences(found: Difference, simulation: Simulation, plan: Plan, cluster: Cluster) -> list[str]:
    """The difference in words, the largest part first; one sentence says so where there is none."""
    if simulation.costs.table is None:
        return ["No formula speaks of such a plan: the queues alone say what it takes."]
    # A plan that was written by hand may predict nothing.
    step = plan.predicted.step_seconds or simulation.step_seconds
    sign = "more" if found.seconds > 0 else "less"
    made = f"for {plan.cluster}" if plan.cluster != cluster.name else ""
    if plan.profile != cluster.profile:
        made += f" with{'out a profile' if plan.profile is None else f' the profile {plan.profile.path}'}"
    texts = {
        "costs": f"the plan's own prediction has other numbers than {plan.model} on {cluster.name} has now"
        + (f" (it was made {made.strip()})" if made else ""),
        "turns": _turns(plan, found.turns_seconds),
        "transfers": "transfers keep devices waiting longer than the formula counts"
        if found.transfers_seconds > 0
        else "more of the transfers than the formula counts runs beside turns",
        "end": "a stage that has run its turns ends its step while others still run theirs"
        if found.end_seconds < 0
        else "the messages at the end of the step keep each other waiting",
    }
    parts = sorted(found.items().items(), key=lambda part: -abs(part[1]))
    told = [f"{_signed(value)}: {texts[name]}." for name, value in parts if abs(value) > NONE * step]
    if not told:
        return ["The queues take exactly what the formula says."]
    if abs(found.seconds) <= NONE * step:
        return ["The parts in which queues and formula differ cancel out.", *told]
    share = f"{100 * abs(found.seconds) / step:.3g}%"
    return [f"The queues take {share} {sign} than predicted ({_signed(found.seconds)}).", *told]


def _turns(plan: Plan, seconds: float) -> str:
    if plan.order.generator == "gpipe":
        return "GPipe's turns fall into each other in another way than the formula's two maxima say"
    if seconds < 0:
        return "1F1B's formula gives every micro-batch the slowest stage's pace; some wait less"
    return "1F1B's formula lets the slowest stage run without a pause; between turns of different lengths it has some"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '−'}{duration(abs(seconds))}"
