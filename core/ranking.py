"""The plan that is fastest when it is simulated, among the best under the planner's formula.

Above the planner and the simulator, which know nothing of each other's choices: the planner gives its best answers,
each is lowered and simulated, the fastest wins, and the prediction shown is the simulated one. The stated formula can't
see how turns of unlike lengths fall into each other, nor how much of a round trip a warm-up hides; a sharper one sees
most of it (planner/joint/sharp.py), and its best answers near the stated one's are simulated too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from partita.branching import SAME, Start, alone, beside, in_models_order, relistings, unproven
from partita.cost.alike import alike
from partita.errors import Infeasible, PlanError
from partita.own_sizes import with_own_sizes
from partita.plan import Plan
from partita.planner.arrangement import arrangement
from partita.planner.branches.sizes import plan_seconds
from partita.planner.joint.climb import sharpest
from partita.planner.joint.engine import TIE, Answer
from partita.planner.joint.formula import FORMULAS, terms
from partita.planner.joint.interleave import interleaved
from partita.planner.joint.plan import Solved, searched, solve
from partita.planner.joint.price import Pricing
from partita.planner.joint.search import Found
from partita.planner.reasons import reasons
from partita.planner.words import duration
from partita.problem import Problem
from partita.simulate.predict import predicted
from partita.simulated import TURNS, captured, fits, turns

# Tables that are looked into beside the best's: so many, with answers that the formula gives up to so many times its
# seconds. The sharper formula's best of all takes up to a tenth less than the stated one says.
WITHIN, TABLES = 1.1, 8
# What is simulated: so many plans, of answers that the sharper formula gives up to so many times the best simulated.
MOST, NEAR = 5, 1.005
# Plans of other orders of the blocks that take over so many times as long as the fastest so far when their turns are
# played one by one are not simulated: of 300 chains of random graphs that said up to 7 % more than the simulation.
PLAYED = 1.08
# Times of a single stage that differ by less are the same.
ROUNDED = 1.02
OTHER_ORDER = (
    "Its stages are runs of another list of the blocks than the model's: of two that don't read each other, either may "
    "come first."
)


def planned(problem: Problem, seconds: float = inf, engine: str = "joint") -> Plan:
    """The plan of a problem, with its reasons: ``solve``'s answer, ranked. Where no chain of stages fits, branches side
    by side may. Times and errors are those of ``joint.plan.solve``."""
    deadline = time.monotonic() + seconds
    try:
        solved = solve(problem, seconds, engine)
    except Infeasible as none:
        tried: list[Start] = []
        found = alone(Pricing(problem, alike(problem.graph)), deadline, tried)
        if found is None:
            raise
        # What would make one fit is no question any more.
        chain = f"As a chain of stages {str(none).split('. ')[0].rstrip('.')}."
        return _own(problem, found.start, tried, [], [chain, *found.said])
    return ranked(solved)


def ranked(solved: Solved) -> Plan:
    """The plan that simulates fastest; the formula's own where its simulation would take too long.

    What can't be lowered (a value that isn't of samples between stages of unlike dp) is left out; where that is all
    there is, the best plan whose stages are alike.
    """
    problem = solved.engine.pricing.problem
    race, chains = _Race(problem, solved), [solved]
    try:
        race.run(solved, _plans(solved))
        if race.best is not None and solved.searched.optimal:
            # The least under the formula, and those whose interleaved forms aren't simulated yet.
            least, left = solved.best.seconds, []
            for other in relistings(solved, race.best[2]):
                chains.append(other)
                if len(other.best.found.stages) == 1:
                    continue
                better = other.best.seconds < least * (1 - TIE)
                race.run(other, _plans(other, better))
                if better:
                    least = other.best.seconds
                else:
                    left.append(other)
            winner = race.best[0]
            for other in sorted(left, key=lambda one: one is not winner):
                # In that order those win that the formula doesn't put first.
                if other is race.best[0] or race.best[2].schedule not in FORMULAS:
                    race.run(other, ((0.0, other.best, plan) for plan in interleaved(other, other.best)))
    except KeyboardInterrupt:
        # The best so far, simulated or not, is worth more than none.
        pass
    if race.best is None and race.refused is not None:
        alike = searched(solved.engine.pricing.on(problem), uniform=True)
        if alike is None or len({stage.shape for stage in solved.best.found.stages}) == 1:
            raise race.refused
        return ranked(alike)
    if race.best is None:
        plan = solved.plan(solved.best)
        why = _not_simulated(plan) if captured(problem, plan) else _not_captured(plan)
        return replace(plan, reasons=(*reasons(solved, solved.best, plan), why))
    first, answer, plan = race.best
    if first is solved:
        answer, plan = _fewest(solved, (answer, plan))
    said = [_said(answer, first.best, plan, len(race.tried))]
    if first is not solved:
        plan, said = replace(plan, search=unproven(first, plan.search)), [*said, OTHER_ORDER]
    start: Start = first, answer, plan
    tried = [start, *race.tried]
    if found := beside(problem, first, answer, plan, [chain for chain in chains if chain is not first], tried):
        start, said = found.start, [*said, *found.said]
    return _own(problem, start, tried, race.passed, said)


def _own(problem: Problem, start: Start, tried: Sequence[Start], passed: Sequence[Start], said: Sequence[str]) -> Plan:
    """The plan that is the fastest, or one of those that were simulated or passed over with other micro-batches, where
    that is faster, with its reasons; ``said``: what there is to say of the first."""
    solved, answer, plan = start
    if own := with_own_sizes(problem, [start, *tried], passed):
        if own.start is start:
            said = [*said, own.said]
        else:
            listed = [] if own.start[0].engine.pricing.problem.graph is problem.graph else [OTHER_ORDER]
            others = f"({arrangement(plan.stages, plan.order)}) takes {duration(plan.predicted.step_seconds)}"
            said = [*listed, own.said, f"The fastest with one number of micro-batches in all stages {others}."]
        (solved, answer, _), plan = own.start, own.plan
    return replace(plan, reasons=(*reasons(solved, answer, plan), *said))


@dataclass
class _Race:
    """Plans of a problem that are simulated, the fastest so far, and those that are passed over. ``first``: the search
    with the blocks in the model's order."""

    problem: Problem
    first: Solved
    left: int = TURNS
    best: Start | None = None
    tried: list[Start] = field(default_factory=list)
    passed: list[Start] = field(default_factory=list)
    refused: PlanError | None = None

    def run(self, solved: Solved, plans: Iterable[tuple[float, Answer, Plan]]) -> None:
        """Simulates the plans of a search while there is time: those that the seconds before each don't say to be
        slower than the fastest of them, nor what is played of another order's slower than the fastest of all."""
        best = inf
        for seconds, answer, plan in plans:
            if seconds > best * NEAR or self._slow(solved, answer, plan):
                self.passed.append((solved, answer, plan))
                continue
            plan = in_models_order(self.problem, plan)
            self.left -= turns(plan)
            graph = captured(self.problem, plan)
            if self.left < 0 or (graph is None and self.best is None and self.refused is None):
                break
            if graph is None:
                continue
            try:
                plan = predicted(graph, plan, self.problem.cluster)
            except PlanError as error:
                self.refused = self.refused or error
                continue
            if not fits(self.problem, plan):
                continue
            self.tried.append((solved, answer, plan))
            step = plan.predicted.step_seconds
            if plan.schedule in FORMULAS:
                # Interleaved forms, which a chain that is held in 1F1B hasn't, don't make it stop sooner.
                best = min(best, step)
            # Another order of the blocks than the model's must be worth it.
            known = self.best is not None and self.best[0] is not solved
            if self.best is None or step * (SAME if known else 1 + TIE) < self.best[2].predicted.step_seconds:
                self.best = solved, answer, plan

    def _slow(self, solved: Solved, answer: Answer, plan: Plan) -> bool:
        """Whether the turns of a plan of another order, one by one, take so long that it can't be the fastest."""
        if self.best is None or solved is self.first:
            return False
        limit = self.best[2].predicted.step_seconds * PLAYED
        return plan_seconds(solved.engine.pricing, answer, plan, limit) > limit


def _fewest(solved: Solved, best: tuple[Answer, Plan]) -> tuple[Answer, Plan]:
    """Of one stage, the plan with the fewest micro-batches that takes as long but for a rounding: there they
    save memory and nothing else, and a formula that counts no loop of the host splits a batch for a hundredth."""
    if len(best[1].stages) > 1 or best[1].stages[0].micro_batches == 1:
        return best
    problem = solved.engine.pricing.problem
    for answer in solved.engine.others(best[0], ROUNDED, TABLES):
        if len(answer.found.stages) == 1 and answer.table.micro_batches < best[0].table.micro_batches:
            plan = solved.plan(answer)
            if plan.sample_parts == best[1].sample_parts:
                best = answer, predicted(problem.graph, plan, problem.cluster)
    return best


def _plans(solved: Solved, forms: bool = True) -> Iterator[tuple[float, Answer, Plan]]:
    """The best under the formula, the best under the sharper one, the interleaved ``forms`` of the first, and what is
    left; and the seconds that the sharper formula gives, 0 where it says nothing."""
    yield 0.0, solved.best, solved.plan(solved.best)
    if not solved.searched.optimal or len(solved.best.found.stages) == 1:
        return
    near = sorted(_answers(solved), key=lambda one: one[0])[:MOST]
    yield from ((seconds, answer, solved.plan(answer)) for seconds, answer in near[:1])
    if forms:
        yield from ((0.0, solved.best, plan) for plan in interleaved(solved, solved.best))
    yield from ((seconds, answer, solved.plan(answer)) for seconds, answer in near[1:])


def _answers(solved: Solved) -> Iterator[tuple[float, Answer]]:
    """Answers of the best's table and of several others that take about as little as the best of them under the sharper
    formula, with these seconds; GPipe's formula is exact."""
    depths = [depth for schedule, depth in solved.engine.schedules if schedule == "1f1b"]
    below, seen = solved.best.seconds * NEAR, {_key(solved.best)}
    for answer in (solved.best, *solved.engine.others(solved.best, WITHIN, TABLES)):
        found = [(answer.seconds, answer)] if answer.seconds < below else []
        if len(answer.found.stages) > 1:
            for one in sharpest(answer.table, answer.found.stages, depths, below):
                stated = terms(one.table, one.stages)
                stages = Found(one.stages, stated.step_seconds(one.table.micro_batches), stated, 0)
                found.append((one.seconds, Answer(answer.family, one.table, stages)))
        for seconds, each in found:
            below = min(below, seconds * NEAR)
            if _key(each) not in seen:
                seen.add(_key(each))
                yield seconds, each


def _key(answer: Answer) -> tuple[object, ...]:
    """Equal for plans that run alike."""
    table, count = answer.table, len(answer.found.stages)
    return table.micro_batches, answer.found.stages, tuple(table.held(behind) for behind in range(count))


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
