"""Plans whose stages take their samples in numbers of micro-batches of their own, where that simulates faster.

Above the planner and the simulator, as ``ranking``, which asks here for the plans that it has found: from each goes a
climb whose turns are played one by one (``planner.branches.sizes``), and what that says to be fastest is simulated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from partita.branching import APART, SAME, Start, in_models_order
from partita.errors import listed
from partita.plan import Plan, rounded
from partita.planner.arrangement import numbered
from partita.planner.branches import NAME
from partita.planner.branches.search import GraphSearch
from partita.planner.branches.sizes import SCHEDULES, Bases, Counts, Sizes, plan_seconds
from partita.planner.joint.build import plan_stages
from partita.planner.words import duration
from partita.problem import Problem
from partita.schedules import find
from partita.simulated import TURNS, captured, simulated, turns

# Ends of climbs that are simulated, after how many in a row that win nothing no more are, and how many times as long as
# the fastest plan so far one may be expected to take.
MOST, IN_VAIN, EXPECTED = 8, 4, 1.02
# How many times as long as the fastest a plan may take from which a climb goes; turns that all of them play: about a
# second for half a million.
NEAR, PLAYED = 1.2, 200_000


@dataclass(frozen=True)
class Own:
    """A plan with micro-batches of its stages' own, what it is from, and the sentence that says what they win."""

    start: Start
    plan: Plan
    said: str


@dataclass(frozen=True)
class _End:
    """Where a climb came to, and the seconds that are to be expected."""

    start: Start
    sizes: Sizes
    counts: Counts
    seconds: float

    @property
    def key(self) -> object:
        """Equal for the same stages in the same order."""
        plan = self.start[2]
        stages = [(stage.blocks, stage.devices, stage.tp) for stage in plan.stages]
        return tuple(stages), self.counts, plan.schedule, tuple(sorted(plan.order.arguments.items()))

    def plan(self, problem: Problem) -> Plan:
        """The plan without a prediction."""
        (solved, answer, plan), pricing = self.start, self.sizes.pricing
        stages = [
            replace(plan_stages(pricing, answer.family, table, [stage])[0], name=f"stage{number}")
            for number, (table, stage) in enumerate(self.sizes.chosen(self.counts))
        ]
        made = replace(solved.plan(answer), stages=tuple(stages), shared_parameters=solved.shared(stages))
        order = replace(plan.order, micro_batches=max(self.counts))
        return in_models_order(problem, replace(made, schedule=plan.schedule, order=order, search=plan.search))


def with_own_sizes(problem: Problem, starts: Sequence[Start], passed: Sequence[Start] = ()) -> Own | None:
    """The fastest of these simulated plans, and of those that were ``passed`` over, with other micro-batches in some
    stages or all; None where nothing takes less than each of them, for a target that runs no such stages, and where
    their size or number is held."""
    if problem.target != "partita" or {"micro_batch", "micro_batches"} & problem.fix.keys():
        return None
    best: tuple[Start, Plan] | None = None
    step, left, vain = min(plan.predicted.step_seconds for _, _, plan in starts), TURNS, 0
    try:
        for end in _ends(starts, passed, step)[:MOST]:
            other = end.plan(problem)
            left -= turns(other)
            if left < 0 or vain == IN_VAIN or end.seconds > step * EXPECTED:
                break
            made, vain = simulated(problem, captured(problem, other), other), vain + 1
            if made is not None and made.predicted.step_seconds * SAME < step:
                best, step, vain = (end.start, made), made.predicted.step_seconds, 0
    except KeyboardInterrupt:
        # The best so far.
        pass
    if best is None:
        return None
    start, plan = best
    before = start[2]
    if all(start is not one for one in starts):
        before = in_models_order(problem, before)
        before = simulated(problem, captured(problem, before), before) or before
    bound = rounded(GraphSearch(start[0].engine, (), inf).bound_of_own_sizes)
    search = replace(plan.search, engine=NAME, optimal=False, bound_seconds=bound)
    return Own(start, replace(plan, search=search), _sentence(before, plan))


def _ends(starts: Sequence[Start], passed: Sequence[Start], step: float) -> list[_End]:
    """What climbs from the plans that take about ``step`` seconds come to, each once, the fastest first; of those as
    fast, equal stages."""
    begun = [(plan.predicted.step_seconds, start) for start in starts for plan in start[2:]]
    for start in passed:
        solved, answer, plan = start
        begun.append((plan_seconds(solved.engine.pricing, answer, plan, step * NEAR), start))
    found: dict[object, _End] = {}
    left, bases = PLAYED, Bases()
    for seconds, start in sorted(begun, key=lambda one: one[0]):
        if 0 < seconds < step * NEAR and time.monotonic() < start[0].engine.deadline:
            ends, left = _climbed(start, seconds, left, bases)
            for end in ends:
                found.setdefault(end.key, end)
    least = min((end.seconds for end in found.values()), default=inf)
    return sorted(
        found.values(),
        key=lambda one: (0, len(set(one.counts)), one.counts) if one.seconds < least * SAME else (one.seconds,),
    )


def _climbed(start: Start, seconds: float, left: int, bases: Bases) -> tuple[list[_End], int]:
    """What a climb from a plan that takes so many seconds says to be faster, and how many turns are left to play."""
    solved, answer, plan = start
    if plan.schedule not in SCHEDULES or len(plan.stages) == 1:
        return [], left
    sizes = Sizes(solved.engine.pricing, answer, find(plan.schedule), plan.order.arguments, seconds, left, bases)
    first = tuple(stage.micro_batches for stage in plan.stages)
    played = sizes.seconds(first)
    if abs(played / seconds - 1) > APART:
        return [], sizes.left
    ends = [_End(start, sizes, counts, took * seconds / played) for took, counts in sizes.climb(first)[:MOST]]
    return ends, sizes.left


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
