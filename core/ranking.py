"""The plan that is fastest when it is simulated, among the best under the planner's formula.

Above the planner and the simulator, which know nothing of each other's choices: the planner gives its best answers,
each is lowered and simulated, the fastest wins, and the prediction shown is the simulated one. A formula can't see how
turns of unlike lengths fall into each other, nor what transfers keep waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.cluster import Cluster
from partita.cost.precision import compute_dtype
from partita.errors import PartitaError
from partita.graph import Graph
from partita.hooks import plugins
from partita.plan import Plan
from partita.planner.joint.engine import TIE, Answer
from partita.planner.joint.formula import FORMULAS
from partita.planner.joint.interleave import interleaved
from partita.planner.joint.plan import Solved
from partita.planner.reasons import reasons
from partita.planner.words import duration
from partita.problem import Problem
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
            graph = _graph(problem, plan)
            if left < 0 or (graph is None and best is None):
                break
            if graph is None:
                continue
            plan = predicted(graph, plan, problem.cluster)
            if any(peak > problem.memory_limit_of((device,)) for device, peak in plan.predicted.peak_bytes.items()):
                continue
            simulated += 1
            if best is None or plan.predicted.step_seconds < best[1].predicted.step_seconds * (1 - TIE):
                best = answer, plan
    except KeyboardInterrupt:
        # The best so far, simulated or not, is worth more than none.
        pass
    if best is None:
        plan = solved.plan(solved.best)
        why = _not_simulated(plan) if _graph(problem, plan) else _not_captured(plan)
        return replace(plan, reasons=(*reasons(solved, solved.best, plan), why))
    answer, plan = best
    said = _said(answer, solved.best, plan, simulated)
    return replace(plan, reasons=(*reasons(solved, answer, plan), said))


def foretold(graph: Graph, plan: Plan, cluster: Cluster) -> Plan:
    """Any plan with the prediction of its simulation, as ranked plans have it; the formula's where that would take too
    long."""
    return plan if turns(plan) > TURNS else predicted(graph, plan, cluster)


def _graph(problem: Problem, plan: Plan) -> Graph | None:
    """The model with as many samples as the plan cuts them into: the problem's, or captured again by its name; None
    where the name is no model's, or another's."""
    graph, parts = problem.graph, plan.sample_parts
    if graph.samples % parts == 0:
        return graph
    try:
        found: Graph | None = plugins().hook.partita_capture(
            model=graph.name, samples=parts, seq=graph.seq, dtype=compute_dtype(problem.precision)
        )
    except PartitaError:
        return None
    return found if found is not None and _parameters(found) == _parameters(graph) else None


def _parameters(graph: Graph) -> list[tuple[str, dict[str, tuple[int, ...]]]]:
    return [(block.name, {name: graph.tensor[name].shape for name in block.parameters}) for block in graph.blocks]


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
    return (
        f"Not simulated: a step has {turns(plan):,} turns. The time is the formula's; partita simulate plays the plan."
    )


def _not_captured(plan: Plan) -> str:
    return (
        f"Not simulated: stages divide a copy's samples {plan.sample_parts}-fold, the model was captured with fewer. "
        "The time is the formula's; partita simulate --model MODEL plays the plan."
    )
