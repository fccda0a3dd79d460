"""Plans whose stages take their samples in numbers of micro-batches of their own, where that simulates faster.

Above the planner and the simulator, as ``ranking``, which asks here for the plan that it has found: from it goes a
climb whose turns are played one by one (``planner.branches.sizes``), and what that says to be fastest is simulated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from partita.branching import SAME, in_models_order
from partita.errors import PlanError, listed
from partita.plan import Order, Plan, rounded
from partita.planner.arrangement import numbered
from partita.planner.branches import NAME
from partita.planner.branches.search import GraphSearch
from partita.planner.branches.sizes import Sizes
from partita.planner.joint.build import plan_stages
from partita.planner.joint.engine import Answer
from partita.planner.joint.plan import Solved
from partita.planner.words import duration
from partita.problem import Problem
from partita.schedules import find
from partita.simulate.predict import predicted
from partita.simulated import TURNS, captured, fits, turns

# Ends of a climb that are simulated, and after how many that win nothing no more are.
MOST, IN_VAIN = 6, 3
# How far what is played may be from the simulation of the plan: from there on it says nothing of others.
APART = 0.15
# Orders in which stages may have unlike numbers, and which the search lists with a warm-up.
SCHEDULES = ("1f1b", "kfkb")


def with_own_sizes(
    problem: Problem, solved: Solved, answer: Answer, plan: Plan, than: float = inf
) -> tuple[Plan, str] | None:
    """The plan with other micro-batches in some stages or all, and the sentence that says what they win; None where
    nothing does, for a target that runs no such stages, and where their size or number is held. ``solved`` and
    ``answer``: what the plan is from. ``than``: it must take less than so many seconds, too."""
    held = {"micro_batch", "micro_batches"} & problem.fix.keys()
    late = time.monotonic() > solved.engine.deadline
    if problem.target != "partita" or held or late or plan.schedule not in SCHEDULES or len(plan.stages) == 1:
        return None
    best, left, step = plan, TURNS, min(than, plan.predicted.step_seconds)
    try:
        for number, other in enumerate(_climbed(problem, solved, answer, plan)):
            if (left := left - turns(other)) < 0 or (best is plan and number == IN_VAIN):
                break
            graph = captured(problem, other)
            if graph is None:
                continue
            try:
                other = predicted(graph, other, problem.cluster)
            except PlanError:
                # What crosses between two stages has no rows of samples.
                continue
            if fits(problem, other) and other.predicted.step_seconds * SAME < step:
                best, step = other, other.predicted.step_seconds
    except KeyboardInterrupt:
        # The best so far.
        pass
    if best is plan:
        return None
    bound = rounded(GraphSearch(solved.engine, (), inf).bound_of_own_sizes)
    search = replace(best.search, engine=NAME, optimal=False, bound_seconds=bound)
    return replace(best, search=search), _sentence(plan, best)


def _climbed(problem: Problem, solved: Solved, answer: Answer, plan: Plan) -> Iterator[Plan]:
    """The plans that a climb says to be faster, the fastest first; of those as fast, equal stages."""
    pricing, schedule = solved.engine.pricing, find(plan.schedule)
    sizes = Sizes(pricing, answer, schedule, plan.order.arguments, plan.predicted.step_seconds)
    first, step = tuple(stage.micro_batches for stage in plan.stages), plan.predicted.step_seconds
    if abs(sizes.seconds(first) / step - 1) > APART or not (found := sizes.climb(first)):
        return
    as_fast = [counts for took, counts in found if took < found[0][0] * SAME]
    slower = [counts for took, counts in found if took >= found[0][0] * SAME]
    for counts in [*sorted(as_fast, key=lambda one: (len(set(one)), one)), *slower][:MOST]:
        chosen = sizes.chosen(counts)
        stages = [
            replace(plan_stages(pricing, answer.family, table, [stage])[0], name=f"stage{number}")
            for number, (table, stage) in enumerate(chosen)
        ]
        made = replace(solved.plan(answer), stages=tuple(stages), shared_parameters=solved.shared(stages))
        order = Order(plan.schedule, len(stages), max(counts), dict(plan.order.arguments))
        yield in_models_order(problem, replace(made, schedule=plan.schedule, order=order, search=plan.search))


def _sentence(before: Plan, after: Plan) -> str:
    counts = [stage.micro_batches for stage in after.stages]
    each = {count: [at for at, other in enumerate(counts) if other == count] for count in dict.fromkeys(counts)}
    took = f"with {before.order.micro_batches} in each stage the step takes {duration(before.predicted.step_seconds)}"
    times = before.predicted.step_seconds / after.predicted.step_seconds
    if len(each) == 1:
        many = f"{counts[0]} micro-batches" if counts[0] > 1 else "one micro-batch"
        return f"All stages take their samples in {many}: {took}, {times:.3f} times as long."
    said = listed([f"{numbered(stages)} in {count}" for count, stages in each.items()])
    return f"Stages take their samples in micro-batches of their own size, {said}: {took}, {times:.3f} times as long."
