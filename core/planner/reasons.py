"""Why this plan: sentences with the numbers that decided, in the user's terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from partita.errors import listed
from partita.plan import Prediction, SharedParameter
from partita.planner.candidates import Candidate
from partita.planner.chain import Cutting
from partita.planner.numbers import Numbers
from partita.planner.profile_words import profile_sentences
from partita.planner.words import describe, duration, gib
from partita.problem import TARGETS


def reasons(
    numbers: Numbers, c: Candidate, cutting: Cutting, predicted: Prediction, shared: Sequence[SharedParameter],
    idle: Sequence[int], second: tuple[Candidate, float] | None, optimal: bool,
) -> Iterator[str]:  # fmt: skip
    """The sentences, the most important first."""
    problem = numbers.problem
    yield (
        f"{describe(c)}: {duration(predicted.step_seconds)} a step of {problem.global_batch} samples in "
        f"{c.micro_batches} micro-batch{'es' if c.micro_batches > 1 else ''}."
    )
    if second:
        other, seconds = second
        more = (seconds / cutting.seconds - 1) * 100 if cutting.seconds else 0.0
        yield f"The next best arrangement ({describe(other)}) takes {duration(seconds)}, {more:.1f} % more."
    elif optimal:
        yield "No other arrangement of dp, tp and pp fits the memory, the batch and what is held."
    if len(problem.cluster.different_devices()) > 1:
        yield (
            f"The devices differ ({problem.cluster.device_names}): every stage is counted as on the slowest of them, "
            "with the memory of the smallest; partita simulate counts each where it stands."
        )
    if problem.fix:
        yield f"Held by you: {', '.join(f'{name}={value}' for name, value in problem.fix.items())}."
    if idle:
        names = f"device {idle[0]} is" if len(idle) == 1 else f"devices {listed(idle)} are"
        yield (
            f"{names} idle: no plan for all {problem.cluster.devices} devices keeps the batch, the blocks, the memory "
            "and what is held."
        )
    yield from _bottleneck(c, predicted)
    yield from _memory(numbers, c, predicted)
    yield from _odd_blocks(numbers, c, cutting.bounds)
    if c.pp > 1 and c.micro_batches < c.pp:
        yield (
            f"Warning: too few micro-batches ({c.micro_batches}) for {c.pp} stages leave the devices idle for "
            f"{predicted.bubble_fraction:.0%} of the pipeline's time; {c.pp} or more micro-batches waste less."
        )
    where = numbers.placement(c)
    if where.tp_crosses:
        yield f"tp={c.tp} groups cross nodes: their all-reduces run at the speed of the slow link."
    yield from tied(shared)
    target = TARGETS[problem.target]
    if c.pp > 1 and target.zero_in_pipeline != target.zero_alone:
        yield f"{target.sentence}."
    yield from profile_sentences(numbers, c)
    unknown = sorted(frozenset().union(*(cost.unknown for cost in numbers.costs(c.tp))))
    if unknown:
        yield f"Unknown kinds of ops, counted as keeping all they touch: {', '.join(unknown)}."


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


def _bottleneck(c: Candidate, predicted: Prediction) -> Iterator[str]:
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
    if c.pp > 1:
        slow = max(range(c.pp), key=lambda s: stages[s])
        yield (
            f"Stage {slow} is the slowest: {duration(stages[slow])} a micro-batch, the fastest takes "
            f"{duration(min(stages))}."
        )
    yield f"Where a step's time goes: {shares}."


def _memory(numbers: Numbers, c: Candidate, predicted: Prediction) -> Iterator[str]:
    stages, devices, each = predicted.breakdown.stages, numbers.placement(c).devices, c.dp * c.tp
    heavy = max(range(len(stages)), key=lambda s: stages[s].memory.total)
    memory = stages[heavy].memory
    limit = numbers.problem.memory_limit_of(devices[heavy * each : (heavy + 1) * each])
    items = ", ".join(f"{name} {gib(size)}" for name, size in memory.items().items() if size)
    yield (
        f"Memory is heaviest on stage {heavy}: {gib(memory.total)} of {gib(limit)} a device "
        f"({memory.total / limit:.0%}; {items})."
    )


def _odd_blocks(numbers: Numbers, c: Candidate, bounds: Sequence[int]) -> Iterator[str]:
    """What the blocks that are no layer cost, in layers."""
    kinds, blocks = numbers.groups.kinds, numbers.problem.graph.blocks
    kind, count = Counter(kinds).most_common(1)[0]
    seconds = numbers.seconds(c)
    cost = seconds.forward + seconds.backward
    if count < 2 or not cost[kind]:
        return
    layers = [sum(kinds[k] == kind for k in range(i, j)) for i, j in zip(bounds[:-1], bounds[1:], strict=True)]
    for index, stage in ((0, 0), (len(blocks) - 1, c.pp - 1)):
        worth = float(cost[index] / cost[kind])
        if kinds[index] != kind and worth >= 0.2:
            others = _range([n for s, n in enumerate(layers) if s != stage])
            differs = len(set(layers)) > 1
            held = f"; its stage holds {layers[stage]} layers, the others {others}" if differs else ""
            yield f'Block "{blocks[index].name}" costs {worth:.1f} layers{held}.'


def _range(counts: Sequence[int]) -> str:
    """``7`` or ``6 to 8``; empty for no counts."""
    if not counts:
        return ""
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
