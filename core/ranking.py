"""The plan that is fastest when it is simulated, among the best under the planner's formula.

Above the planner and the simulator, which know nothing of each other's choices: the planner gives its best answers,
each is lowered and simulated, the fastest wins, and the prediction shown is the simulated one. A formula can't see how
turns of unlike lengths fall into each other, nor what transfers keep waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.cluster import Cluster
from partita.graph import Graph
from partita.plan import SIMULATED, Plan
from partita.planner.joint.engine import TIE, Answer
from partita.planner.joint.formula import FORMULAS
from partita.planner.joint.interleave import interleaved
from partita.planner.joint.plan import Solved
from partita.planner.reasons import reasons
from partita.planner.words import duration
from partita.simulate.predict import predicted

# What is simulated beside the best: answers that the formula gives up to so many times its seconds, of so many tables.
WITHIN, TABLES = 1.05, 8
# Turns of all devices in all simulations together: a simulation takes about a second for twelve thousand of them.
TURNS = 40_000


def ranked(solved: Solved) -> Plan:
    """The plan that simulates fastest; the formula's own where its simulation would take too long."""
    problem = solved.engine.pricing.problem
    left, simulated = TURNS, 0
    best: tuple[Answer, Plan] | None = None
    try:
        for answer, plan in _plans(solved):
            left -= turns(plan)
            if left < 0:
                break
            plan = foretold(problem.graph, plan, problem.cluster)
            if any(peak > problem.memory_limit_of((device,)) for device, peak in plan.predicted.peak_bytes.items()):
                continue
            simulated += _simulated(plan)
            if best is None or plan.predicted.step_seconds < best[1].predicted.step_seconds * (1 - TIE):
                best = answer, plan
    except KeyboardInterrupt:
        # The best so far, simulated or not, is worth more than none.
        pass
    if best is None:
        plan = solved.plan(solved.best)
        return replace(plan, reasons=(*reasons(solved, solved.best, plan), _not_simulated(plan)))
    answer, plan = best
    if not _simulated(plan):
        return replace(plan, reasons=(*reasons(solved, answer, plan), _not_simulated(plan)))
    said = _said(answer, solved.best, plan, simulated)
    return replace(plan, reasons=(*reasons(solved, answer, plan), said))


def foretold(graph: Graph, plan: Plan, cluster: Cluster) -> Plan:
    """Any plan with the prediction of its simulation, as ranked plans have it; the formula's where that would take too
    long, and where the graph has too few samples for devices of a copy to divide them."""
    divided = graph.samples % plan.sample_parts == 0
    return predicted(graph, plan, cluster) if divided and turns(plan) <= TURNS else plan


def turns(plan: Plan) -> int:
    """Forward and backward turns of all devices in a step."""
    return 2 * sum(len(stage.devices) * stage.micro_batches for stage in plan.stages)


def _plans(solved: Solved) -> Iterator[tuple[Answer, Plan]]:
    """The best under the formula and the interleaved forms of it, then others of other tables, the best first."""
    yield solved.best, solved.plan(solved.best)
    if not solved.searched.optimal or len(solved.best.found.stages) == 1:
        return
    others = sorted(solved.engine.others(solved.best, WITHIN, TABLES), key=lambda answer: answer.seconds)
    yield from ((solved.best, plan) for plan in interleaved(solved, solved.best))
    yield from ((answer, solved.plan(answer)) for answer in others)


def _simulated(plan: Plan) -> bool:
    return plan.predicted.breakdown.formula == SIMULATED


def _said(answer: Answer, first: Answer, plan: Plan, simulated: int) -> str:
    seconds = duration(plan.predicted.step_seconds)
    if plan.schedule not in FORMULAS:
        return (
            f"Under the formula the best takes {duration(first.seconds)}; {plan.schedule} on the same devices takes "
            f"{seconds} when simulated, the least of {simulated} plans."
        )
    if answer is first:
        rest = f"; the fastest of {simulated} plans that were simulated" if simulated > 1 else ""
        return f"The formula gives {duration(answer.seconds)} a step, the simulation {seconds}{rest}."
    return (
        f"Under the formula the best takes {duration(first.seconds)} and this one {duration(answer.seconds)}; of "
        f"{simulated} plans that were simulated this one is the fastest with {seconds}."
    )


def _not_simulated(plan: Plan) -> str:
    why = f"a step has {turns(plan):,} turns" if turns(plan) > TURNS else "devices of a copy divide its samples"
    return f"Not simulated: {why}. The time is the formula's; partita simulate plays the plan."
