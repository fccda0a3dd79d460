"""Why this plan: sentences with the numbers that decided, in the user's terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partita.errors import listed
from partita.graph import Graph
from partita.graph.edges import block_edges, paths_behind, stage_edges
from partita.plan import Plan, SharedParameter
from partita.planner.arrangement import arrangement, numbered
from partita.planner.joint.engine import Answer
from partita.planner.joint.kinds import BlockCut
from partita.planner.joint.plan import Solved
from partita.planner.joint.second import second
from partita.planner.profile_words import profile_sentences
from partita.planner.stage_words import chosen_sentences, odd_blocks
from partita.planner.words import duration, gib
from partita.problem import TARGETS, Problem


def reasons(solved: Solved, answer: Answer, plan: Plan) -> Iterator[str]:
    """The sentences about an answer and its plan, the most important first; seconds are the plan's prediction's."""
    pricing = solved.engine.pricing
    problem, pp = pricing.problem, len(answer.found.stages)
    counts = sorted({stage.micro_batches for stage in plan.stages})
    yield (
        f"{arrangement(plan.stages, plan.order)}: {duration(plan.predicted.step_seconds)} a step of "
        f"{problem.global_batch} samples in {listed(counts)} micro-batch{'es' if counts[-1] > 1 else ''}."
    )
    if solved.searched.optimal and solved.engine.name == "joint":
        yield from _next_best(solved, answer)
    if len(problem.cluster.different_devices()) > 1:
        yield (
            f"The devices differ ({problem.cluster.device_names}): every stage is counted as on the slowest of those "
            "it stands on, with the memory of the smallest. Stages take the nodes in their order."
        )
    if problem.fix:
        yield f"Held by you: {', '.join(f'{name}={value}' for name, value in problem.fix.items())}."
    if idle := plan.idle_devices:
        names = f"device {idle[0]} is" if len(idle) == 1 else f"devices {listed(idle)} are"
        yield (
            f"{names} idle: no plan for all {problem.cluster.devices} devices keeps the batch, the blocks, the memory "
            "and what is held."
        )
    yield from _bottleneck(plan)
    yield from _memory(problem, plan)
    yield from chosen_sentences(pricing, answer, plan)
    yield from odd_blocks(pricing, answer)
    yield from few_micro_batches(problem.graph, plan)
    yield from _crossing(solved, answer)
    yield from tied(plan.shared_parameters)
    target = TARGETS[problem.target]
    if pp > 1 and target.zero_in_pipeline != target.zero_alone:
        yield f"{target.sentence}."
    yield from profile_sentences(pricing, plan.stages)
    costs = pricing.kinds.costs(BlockCut(1))
    if unknown := sorted(frozenset().union(*(cost.unknown for cost in costs))):
        yield f"Unknown kinds of ops, counted as keeping all they touch: {', '.join(unknown)}."


def few_micro_batches(graph: Graph, plan: Plan) -> Iterator[str]:
    """A warning where a micro-batch passes more stages, one after another, than there are micro-batches."""
    count, deep = plan.order.micro_batches, len(plan.stages)
    where = f"{deep} stages"
    if plan.schedule == "kfkb":
        # It goes by the graph: stages side by side have the same micro-batch at the same time.
        edges = stage_edges(block_edges(graph), [stage.blocks for stage in plan.stages])
        deep = max(paths_behind(edges, deep))
        where = where if deep == len(plan.stages) else f"the {deep} stages of the longest path"
    if count < deep:
        yield (
            f"Warning: too few micro-batches ({count}) for {where} leave the devices idle for "
            f"{plan.predicted.bubble_fraction:.0%} of the pipeline's time; {deep} or more micro-batches waste less."
        )


def tied(shared: Sequence[SharedParameter]) -> Iterator[str]:
    """A sentence for all parameters that the same stages hold, none for those of one stage."""
    groups: dict[tuple[int, tuple[int, ...]], list[SharedParameter]] = {}
    for parameter in shared:
        if len(parameter.stages) > 1:
            groups.setdefault((parameter.owner, parameter.stages), []).append(parameter)
    for (owner, stages), found in groups.items():
        more = len(found) - 1
        names = f'"{found[0].parameter}"' + (f" and {more} other parameter{'s' if more > 1 else ''}" if more else "")
        verb, them = ("are", "them") if more else ("is", "it")
        sent = sum(parameter.gradient_bytes for parameter in found)
        yield (
            f"{names} {verb} tied: stage {owner} owns {them}, stages {listed(stages)} hold {them}; {gib(sent)} of "
            "gradient are summed a step."
        )


def _next_best(solved: Solved, answer: Answer) -> Iterator[str]:
    """Compared under the formula, that of this answer too."""
    free = solved.engine.pricing.problem.target == "partita"
    other = second(solved.engine, answer)
    if other is None:
        if not free:
            yield "No other arrangement of dp, tp and pp fits the memory, the batch and what is held."
        return
    more = (other.seconds / answer.seconds - 1) * 100 if answer.seconds else 0.0
    what = "The best with other numbers of stages or micro-batches" if free else "The next best arrangement"
    changed = f"{abs(more):.1f} % {'more' if more >= 0 else 'less'} under the formula"
    yield f"{what} ({said(solved, other)}) takes {duration(other.seconds)}, {changed}."


def said(solved: Solved, answer: Answer) -> str:
    """An answer in one line."""
    plan = solved.plan(answer)
    return arrangement(plan.stages, plan.order)


def _bottleneck(plan: Plan) -> Iterator[str]:
    predicted = plan.predicted
    parts = predicted.breakdown
    names = {
        "compute": parts.compute_seconds, "recomputation": parts.recompute_seconds,
        "collectives of tp and ZeRO": parts.collective_seconds,
        "filling and draining the pipeline": parts.waiting_seconds,
        "gradients over dp and the update": parts.sync_seconds,
    }  # fmt: skip
    step = predicted.step_seconds or 1.0
    shares = ", ".join(f"{name} {value / step:.0%}" for name, value in names.items() if value / step >= 0.005)
    stages = [s.forward_seconds + s.backward_seconds for s in parts.stages]
    counts = [stage.micro_batches for stage in plan.stages]
    what = "a micro-batch"
    if len(set(counts)) > 1:
        stages, what = [each * count for each, count in zip(stages, counts, strict=True)], "for all its micro-batches"
    if len(stages) > 1:
        slow = max(range(len(stages)), key=lambda s: stages[s])
        yield (
            f"Stage {slow} is the slowest: {duration(stages[slow])} {what}, the fastest takes {duration(min(stages))}."
        )
    yield f"Where a step's time goes: {shares}."


def _memory(problem: Problem, plan: Plan) -> Iterator[str]:
    stages = plan.predicted.breakdown.stages
    limits = [problem.memory_limit_of(stage.devices) for stage in plan.stages]
    heavy = max(range(len(stages)), key=lambda s: stages[s].memory.total - limits[s])
    memory, limit = stages[heavy].memory, limits[heavy]
    items = ", ".join(f"{name} {gib(size)}" for name, size in memory.items().items() if size)
    yield (
        f"Memory is heaviest on stage {heavy}: {gib(memory.total)} of {gib(limit)} a device "
        f"({memory.total / limit:.0%}; {items})."
    )


def _crossing(solved: Solved, answer: Answer) -> Iterator[str]:
    """Stages whose groups along the axis tensor cross nodes."""
    places = solved.engine.pricing.places(answer.family)
    found: dict[int, list[int]] = {}
    for number, stage in enumerate(answer.found.stages):
        variant = places.variants[solved.engine.pricing.variant(answer.family, answer.table, stage)]
        if variant.along({"tensor"}).crosses:
            found.setdefault(variant.shape.tp, []).append(number)
    for tp, stages in found.items():
        where = "" if len(stages) == len(answer.found.stages) else f" of {numbered(stages)}"
        yield f"tp={tp} groups{where} cross nodes: their all-reduces run at the speed of the slow link."
