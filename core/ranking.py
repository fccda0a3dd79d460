"""The plan that is fastest when it is simulated, among the best under the planner's formula.

Above the planner and the simulator, which know nothing of each other's choices: the planner gives its best answers, each
is lowered and simulated, the fastest wins, and the prediction shown is the simulated one. A formula can't see how turns
of unlike lengths fall into each other, nor what transfers keep waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.plan import Plan
from partita.planner.joint.engine import Answer
from partita.planner.joint.plan import Solved
from partita.planner.reasons import reasons
from partita.planner.words import duration
from partita.simulate.predict import predicted

# What is simulated beside the best: answers that the formula gives up to so many times its seconds, of so many tables.
WITHIN, TABLES = 1.05, 8
# Turns of all devices in all simulations together: a simulation takes about a second for twelve thousand of them.
TURNS = 40_000


def ranked(solved: Solved) -> Plan:
    """The plan of the answer that simulates fastest; the formula's own where its simulation would take too long."""
    graph, cluster = solved.engine.pricing.problem.graph, solved.engine.pricing.cluster
    left, best, simulated = TURNS, None, 0
    for answer in _answers(solved):
        left -= turns(answer)
        if left < 0:
            break
        simulated += 1
        plan = predicted(graph, solved.plan(answer), cluster)
        if best is None or plan.predicted.step_seconds < best[1].predicted.step_seconds * (1 - 1e-9):
            best = answer, plan
    if best is None:
        plan = solved.plan(solved.best, tuple(reasons(solved, solved.best)))
        return replace(plan, reasons=(*plan.reasons, _not_simulated(solved.best)))
    answer, plan = best
    said = _said(answer, solved.best, plan.predicted.step_seconds, simulated)
    return replace(plan, reasons=(*reasons(solved, answer), said))


def turns(answer: Answer) -> int:
    """Forward and backward turns of all devices in a step."""
    shapes = (answer.family.shapes[stage.shape] for stage in answer.found.stages)
    return 2 * answer.table.micro_batches * sum(shape.devices for shape in shapes)


def _answers(solved: Solved) -> Iterator[Answer]:
    """The best under the formula, then others of other tables, in order of the formula's seconds."""
    yield solved.best
    if not solved.searched.optimal or len(solved.best.found.stages) == 1:
        return
    others = [
        answer for answer in solved.engine.others(solved.best, WITHIN, TABLES)
        if (answer.table.micro_batches, answer.shapes) != (solved.best.table.micro_batches, solved.best.shapes)
    ]  # fmt: skip
    yield from sorted(others, key=lambda answer: answer.seconds)


def _said(answer: Answer, first: Answer, seconds: float, simulated: int) -> str:
    if answer is first:
        rest = f"; the fastest of {simulated} plans that were simulated" if simulated > 1 else ""
        return f"The formula gives {duration(answer.seconds)} a step, the simulation {duration(seconds)}{rest}."
    return (
        f"The formula's best takes {duration(first.seconds)} under the formula, this one {duration(answer.seconds)}; of "
        f"{simulated} plans that were simulated this one is the fastest with {duration(seconds)}."
    )


def _not_simulated(answer: Answer) -> str:
    return (
        f"Not simulated: a step has {turns(answer):,} turns. The time is the formula's; partita simulate plays the plan."
    )
