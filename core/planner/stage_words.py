"""Sentences about what stages choose by themselves: devices, recomputation, the form of blocks, the warm-up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from partita.plan import Plan
from partita.planner.arrangement import numbered
from partita.planner.joint.engine import Answer
from partita.planner.joint.formula import stage_numbers
from partita.planner.joint.price import Pricing
from partita.planner.words import counted, gib


def chosen_sentences(pricing: Pricing, answer: Answer, plan: Plan) -> Iterator[str]:
    """Only of what isn't alike everywhere, or is no default."""
    yield from _unlike(plan)
    # Where stages are interleaved, the answer has those of one round alone.
    if len(plan.stages) == len(answer.found.stages):
        yield from _again(pricing, answer, plan)
    yield from _divided(plan)
    if depth := answer.table.depth:
        flights = ", ".join(str(stage.in_flight) for stage in plan.predicted.breakdown.stages)
        yield (
            f"{depth} more micro-batch{'es' if depth > 1 else ''} than 1F1B needs go ahead over each boundary, so that "
            f"transfers are hidden; the stages hold {flights} at a time."
        )


def _unlike(plan: Plan) -> Iterator[str]:
    uses = [(len(stage.devices), stage.tp, stage.dp) for stage in plan.stages]
    if len(set(uses)) == 1:
        return
    said = []
    for use in dict.fromkeys(uses):
        where = [number for number, other in enumerate(uses) if other == use]
        blocks = sum(len(plan.stages[number].blocks) for number in where)
        devices, tp, dp = use
        each = " each" if len(where) > 1 else ""
        said.append(f"{numbered(where)}: {counted(devices)}{each} as tp={tp}, dp={dp}, {blocks} blocks")
    yield f"Stages use their devices in unlike ways ({'; '.join(said)})."


def _again(pricing: Pricing, answer: Answer, plan: Plan) -> Iterator[str]:
    """How many blocks are computed again, and what their stages would need otherwise."""
    found = {
        number: count
        for number, stage in enumerate(plan.stages)
        if (count := sum(strategy.recompute != "none" for strategy in stage.strategies))
    }
    if not found:
        return
    total = sum(len(stage.blocks) for stage in plan.stages)
    where = ", ".join(
        f"stage {number}: {count} of {len(plan.stages[number].blocks)}" for number, count in found.items()
    )
    text = f"{sum(found.values())} of {total} blocks are computed again in the backward pass ({where})"
    limits = {number: pricing.problem.memory_limit_of(plan.stages[number].devices) for number in found}
    # With other micro-batches the answer's numbers aren't the stage's.
    needs = {
        number: _without(answer, number, limits[number])
        if plan.stages[number].micro_batches == answer.table.micro_batches
        else None
        for number in found
    }
    most = max(needs, key=lambda number: (needs[number] or 0.0) - limits[number])
    limit = limits[most]
    if "recompute" in pricing.problem.fix:
        yield f"{text}, as held."
    elif (size := needs[most]) is not None and size > limit:
        yield f"{text}: without that stage {most} would need {gib(size)} a device, {gib(limit)} are there."
    else:
        yield f"{text}: what that frees lets the stages use the rest of their memory better."


def _without(answer: Answer, number: int, limit: int) -> float | None:
    """Bytes on a device of a stage, which has ``limit``, were nothing computed again; None where that is no option."""
    options, stage = answer.family.options, answer.found.stages[number]
    without = [replace(options[m], recompute="none") for m in stage.options]
    if not set(without) <= set(options):
        return None
    plain = tuple(options.index(option) for option in without)
    behind = len(answer.found.stages) - 1 - number
    size = stage_numbers(answer.table, replace(stage, options=plain), behind).bytes
    return size - (answer.table.memory_limit - limit)


def _divided(plan: Plan) -> Iterator[str]:
    found = []
    for number, stage in enumerate(plan.stages):
        count = sum(strategy.cut_along("tensor") == {"batch"} for strategy in stage.strategies)
        if count:
            found.append(f"stage {number}: {count} of {len(stage.blocks)}")
    if found:
        yield (
            f"Some blocks divide a copy's samples over tp, not their heads and hidden units ({', '.join(found)}): they "
            "keep all of their parameters on each device, and need no all-reduces of activations."
        )


def odd_blocks(pricing: Pricing, answer: Answer) -> Iterator[str]:
    """What the blocks that are no layer cost, in layers of their own stage's kind."""
    kinds, blocks, stages = pricing.groups.kinds, pricing.problem.graph.blocks, answer.found.stages
    kind, count = Counter(kinds).most_common(1)[0]
    if count < 2:
        return
    layers = [sum(kinds[k] == kind for k in range(stage.start, stage.stop)) for stage in stages]
    for index, at in ((0, 0), (len(blocks) - 1, len(stages) - 1)):
        v = pricing.variant(answer.family, answer.table, stages[at])
        cost = (answer.table.prices.forward[v] + answer.table.prices.backward[v]).min(axis=1)
        typical = cost[kinds.index(kind)]
        if kinds[index] == kind or not np.isfinite(cost[index] / typical if typical else np.inf):
            continue
        worth = float(cost[index] / typical)
        if worth >= 0.2:
            others = _range([n for s, n in enumerate(layers) if s != at])
            differs = len(set(layers)) > 1
            held = f"; its stage holds {layers[at]} layers, the others {others}" if differs else ""
            yield f'Block "{blocks[index].name}" costs {worth:.1f} layers{held}.'


def _range(counts: Sequence[int]) -> str:
    """``7`` or ``6 to 8``; empty for no counts."""
    if not counts:
        return ""
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
