"""Plans whose stages form a graph, beside the best chain of stages: what simulates faster, or holds less, wins.

Above the planner and the simulator, as ``ranking``, which asks here for models with branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from partita.graph import Graph
from partita.plan import Plan, Search, rounded
from partita.planner.arrangement import arrangement
from partita.planner.branches import NAME
from partita.planner.branches.search import GraphSearch, branched, branched_alone, relisted
from partita.planner.branches.sizes import plan_seconds
from partita.planner.joint.engine import Answer
from partita.planner.joint.plan import Solved
from partita.planner.joint.price import Pricing
from partita.planner.words import duration, gib
from partita.problem import TARGETS, Problem
from partita.schedules import Argument
from partita.simulate.predict import predicted
from partita.simulate.stage_graph import Forms, by_graph, forms, sentence, stage_graph
from partita.simulated import TURNS, captured, fits, foretold, simulated, turns

# Steps that take up to so many times as long are as fast.
SAME = 1.001
# Chains in other orders of the blocks that by the formula take up to so many times as long as the best are looked at.
NEAR = 1.1
# Answers of the search that are simulated, and the orders in which they are played, turn by turn: by the graph, with
# more micro-batches in flight where transfers have to hide, and as a chain.
MOST, GRAPH = 4, "kfkb"
ORDERS: tuple[tuple[str, Mapping[str, int]], ...] = (
    ("kfkb", {"k": 1, "depth": 0}), ("kfkb", {"k": 1, "depth": 1}), ("kfkb", {"k": 1, "depth": 2}),
    ("kfkb", {"k": 2, "depth": 0}), ("kfkb", {"k": 4, "depth": 0}), ("1f1b", {"depth": 0}),
)  # fmt: skip
# So many of these are simulated, too, that are expected to take up to so many times as long as the fastest so far. What
# is played so far from the simulation of a plan says nothing of its other orders.
OTHERS, EXPECTED, APART = 6, 1.01, 0.15

# What a plan is from, and the plan.
Start = tuple[Solved, Answer, Plan]


@dataclass(frozen=True)
class Beside:
    """A plan whose stages form a graph, the search and the answer that it is from, and sentences about it."""

    solved: Solved
    answer: Answer
    plan: Plan
    said: tuple[str, ...]

    @property
    def start(self) -> Start:
        """What other sizes of micro-batches are tried from."""
        return self.solved, self.answer, self.plan


def relistings(solved: Solved, chain: Plan) -> Iterator[Solved]:
    """The best chains of the same problem with its blocks listed in other orders, that may be faster than this one;
    none where a plan can't be any graph of stages."""
    if _free(solved.engine.pricing.problem):
        yield from relisted(solved, NEAR * max(solved.best.seconds, chain.predicted.step_seconds))


def unproven(solved: Solved, search: Search) -> Search:
    """The search of the best chain in one order of the blocks; what no stages take less than, in whatever order."""
    bound = rounded(GraphSearch(solved.engine, (), inf).bound_seconds)
    return replace(search, engine=NAME, optimal=False, bound_seconds=bound)


def beside(
    problem: Problem, solved: Solved, answer: Answer, chain: Plan, others: Sequence[Solved] = (),
    tried: list[Start] | None = None,
) -> Beside | None:  # fmt: skip
    """The fastest plan with branches side by side, where the simulation says that it takes less than the best chain, or
    as long and holds less; None where there is none, for a target that has no such order, and where another is held.

    Where ``kfkb`` is held, the fastest in that order, be it slower. ``solved``: what the chain's answer is from;
    ``others``: the same with the blocks in other orders, one of which may be the problem's; ``tried`` gets all that is
    simulated.
    """
    if not _free(problem):
        return None
    held = problem.fix.get("schedule")
    best: Beside | None = None
    if formed := in_graph_order(problem, chain):
        best = Beside(solved, answer, formed[0], (formed[1],))
    elif held == GRAPH:
        # Not None: the chain was simulated.
        graph = captured(problem, chain)
        assert graph is not None
        best = Beside(solved, answer, foretold(graph, by_graph(chain), problem.cluster), ())
    if not solved.searched.optimal:
        # Out of time, or stopped: there is nobody to wait for more.
        return best
    step = (best.plan if best else chain).predicted.step_seconds
    found = _fastest(branched(solved, step, MOST, others), problem, step, tried if tried is not None else [])
    if found is None:
        return best
    than = _than(chain, found.plan)
    return replace(found, said=(*found.said, than))


def alone(pricing: Pricing, deadline: float, tried: list[Start]) -> Beside | None:
    """The fastest plan with branches side by side of a problem for which no chain of stages fits; ``tried`` gets all
    that is simulated."""
    problem = pricing.problem
    if not _free(problem):
        return None
    return _fastest(branched_alone(pricing, inf, MOST, deadline), problem, inf, tried)


def _free(problem: Problem) -> bool:
    """Whether stages may form any graph."""
    return TARGETS[problem.target].graphs and problem.fix.get("schedule") in (None, GRAPH)


def _fastest(searches: Sequence[Solved], problem: Problem, step: float, tried: list[Start]) -> Beside | None:
    """The answer and order that simulate fastest, in less than ``step`` seconds."""
    found: Start | None = None
    try:
        for one in _simulated(searches, problem):
            tried.append(one)
            if one[2].predicted.step_seconds * SAME < step:
                found, step = one, one[2].predicted.step_seconds
    except KeyboardInterrupt:
        # The best so far.
        pass
    if found is None:
        return None
    graph, plan = captured(problem, found[2]), found[2]
    assert graph is not None
    stages = stage_graph(graph, plan)
    said = () if stages.is_chain else (sentence(stages, forms(graph, plan, problem.cluster)),)
    return Beside(*found, said)


def in_graph_order(problem: Problem, plan: Plan) -> tuple[Plan, str] | None:
    """The same stages in the order that goes by their graph (kfkb), where that holds less and takes no longer, and the
    sentence that says so.

    None for other schedules than 1f1b, and where the longest path in the graph leads through all stages.
    """
    if plan.schedule != "1f1b" or len(plan.stages) < 3:
        return None
    graph = captured(problem, plan)
    if graph is None:
        return None
    stages = stage_graph(graph, plan)
    if stages.is_chain:
        return None
    formed = predicted(graph, by_graph(plan), problem.cluster)
    slower = formed.predicted.step_seconds > plan.predicted.step_seconds * SAME
    before, after = (sum(one.predicted.peak_bytes.values()) for one in (plan, formed))
    if slower or after >= before or not fits(problem, formed):
        return None
    return formed, sentence(stages, Forms(formed, plan))


def _simulated(searches: Sequence[Solved], problem: Problem) -> Iterator[Start]:
    """The best answers of the search over graphs of stages, simulated, with as many micro-batches under way as each was
    found with; and in the other orders that are expected to be faster, the fastest first."""
    left, held, best = TURNS, problem.fix.get("schedule"), inf
    tried: list[tuple[Solved, Graph | None, Plan]] = []
    for asked in searches:
        made = in_models_order(problem, asked.plan(asked.best))
        made = replace(made, search=replace(made.search, engine=NAME))
        if (left := left - turns(made)) < 0:
            break
        graph, depth = captured(problem, made), asked.best.depths or asked.best.table.depth
        if plan := simulated(problem, graph, _ordered(made, GRAPH, {"k": 1, "depth": depth})):
            best = min(best, plan.predicted.step_seconds)
            tried.append((asked, graph, plan))
            yield asked, asked.best, plan
    others: list[tuple[float, int, int]] = []
    for at, (asked, _, plan) in enumerate(tried):
        expected = _expected(asked, plan, best)
        others += [(took, at, number) for number, took in expected.items() if held in (None, ORDERS[number][0])]
    for took, at, number in sorted(others)[:OTHERS]:
        asked, graph, plan = tried[at]
        if took > best * EXPECTED or (left := left - turns(plan)) < 0:
            return
        if other := simulated(problem, graph, _ordered(plan, *ORDERS[number])):
            yield asked, asked.best, other


def _expected(asked: Solved, plan: Plan, best: float) -> dict[int, float]:
    """What a plan may take in other orders, by their numbers: as its turns say, one by one, where they say what it
    takes in its own. Where they don't, a plan that takes ``best`` seconds may take as long in any."""
    pricing, step = asked.engine.pricing, plan.predicted.step_seconds
    own = plan_seconds(pricing, asked.best, plan)
    told, seen, found = abs(own / step - 1) <= APART, {own}, dict[int, float]()
    for number, (schedule, arguments) in enumerate(ORDERS):
        other = _ordered(plan, schedule, arguments)
        if arguments.get("k", 1) > plan.order.micro_batches or other.order == plan.order:
            continue
        if told:
            took = plan_seconds(pricing, asked.best, other)
            # Turns in the same order take the same.
            if took not in seen:
                seen.add(took)
                found[number] = took * step / own
        elif step <= best:
            found[number] = step
    return found


def _ordered(plan: Plan, schedule: str, arguments: Mapping[str, Argument]) -> Plan:
    """The plan in another order."""
    return replace(plan, schedule=schedule, order=replace(plan.order, generator=schedule, arguments=dict(arguments)))


def in_models_order(problem: Problem, plan: Plan) -> Plan:
    """The plan of the problem, where another order of the model's blocks was searched."""
    if plan.problem == problem.digest:
        return plan
    place = {block.name: at for at, block in enumerate(problem.graph.blocks)}
    stages = []
    for stage in plan.stages:
        pairs = sorted(zip(stage.blocks, stage.strategies, strict=True), key=lambda pair: place[pair[0]])
        blocks, strategies = zip(*pairs, strict=True)
        stages.append(replace(stage, blocks=blocks, strategies=strategies))
    return replace(plan, problem=problem.digest, stages=tuple(stages))


def _than(chain: Plan, plan: Plan) -> str:
    times = chain.predicted.step_seconds / plan.predicted.step_seconds
    peak = max(chain.predicted.peak_bytes.values())
    return (
        f"The best chain of stages ({arrangement(chain.stages, chain.order)}) takes "
        f"{duration(chain.predicted.step_seconds)}, {times:.2f} times as long, and holds at most {gib(peak)}."
    )
