"""A candidate and its cuts become a plan: stages with devices and strategies, a prediction, reasons."""

from __future__ import annotations

from math import ceil
from typing import Literal

from partita.cost.state import state_bytes
from partita.plan import (
    BATCH_CUT,
    Breakdown,
    Cut,
    MemoryBytes,
    Order,
    Plan,
    Prediction,
    Search,
    SharedParameter,
    Stage,
    StageCost,
    Strategy,
)  # fmt: skip
from partita.planner.candidates import Candidate
from partita.planner.chain import Cutting
from partita.planner.formula import ChainTable, segments
from partita.planner.numbers import Numbers
from partita.planner.reasons import reasons

FORMULAS = {
    "1f1b": "Σp + Σo + (c − 1) · max(p, o, cycle) + max s",
    "gpipe": "Σf + Σb + Σo + (c − 1) · [max(f, of) + max(b, ob)] + max s",
}


def rounded(value: float) -> float:
    """Nine significant digits: what machines agree on whatever the order of their sums."""
    return float(f"{value:.9g}")


def build(
    numbers: Numbers, candidate: Candidate, cutting: Cutting, second: tuple[Candidate, float] | None,
    optimal: bool, bound_seconds: float, considered: int,
) -> Plan:  # fmt: skip
    """The plan of a candidate that is cut so."""
    problem, c = numbers.problem, candidate
    where, costs = numbers.placement(c), numbers.costs(c.tp)
    spans = list(zip(cutting.bounds[:-1], cutting.bounds[1:], strict=True))
    per_stage = c.dp * c.tp
    stages = tuple(
        Stage(
            name=f"stage{s}",
            blocks=tuple(block.name for block in problem.graph.blocks[i:j]),
            devices=where.devices[s * per_stage : (s + 1) * per_stage],
            dp=c.dp, tp=c.tp, samples=c.micro * c.dp, micro_batches=c.micro_batches,
            strategies=tuple(strategy(cost.cuts, c) for cost in costs[i:j]),
        )
        for s, (i, j) in enumerate(spans)
    )  # fmt: skip
    predicted = predict(numbers, c, cutting, stages)
    shared = shared_parameters(numbers, c, cutting.bounds)
    return Plan(
        model=problem.graph.name, problem=problem.digest, cluster=problem.cluster.name, target=problem.target,
        precision=problem.precision, optimizer=problem.optimizer, seq=problem.graph.seq,
        global_batch=problem.global_batch, schedule=c.schedule,
        order=Order(c.schedule, c.pp, c.micro_batches),
        stages=stages, shared_parameters=shared, predicted=predicted,
        reasons=tuple(reasons(numbers, c, cutting, predicted, shared, where.idle, second, optimal)),
        search=Search("chain", optimal, rounded(bound_seconds), considered), idle_devices=where.idle,
    )  # fmt: skip


def strategy(classes: tuple[str, ...], candidate: Candidate) -> Strategy:
    """A block's strategy: the batch cut as in every block, the classes that tp cuts along the tensor axis."""
    tensor = tuple(Cut(name, ("tensor",)) for name in dict.fromkeys(classes))
    recompute: Literal["none", "full"] = "full" if candidate.recompute else "none"
    return Strategy((BATCH_CUT, *tensor), candidate.zero, recompute)  # type: ignore[arg-type]


def stage_memory(numbers: Numbers, candidate: Candidate, stage: int, i: int, j: int) -> MemoryBytes:
    """Bytes by item on each device of a stage with blocks i…j−1; they add up to what the search compared."""
    c, tp = candidate, candidate.tp
    state, plain = numbers.state(c, i, j), state_bytes(numbers.problem.precision, numbers.problem.optimizer, 0, 1)
    borrowed = float(numbers.borrowed(tp)[i, j])
    held = c.micro_batches if c.schedule == "gpipe" else min(c.micro_batches, c.pp - stage)
    return MemoryBytes(
        parameters=ceil(state.parameters + borrowed * plain.parameters),
        gradients=ceil(state.gradients + borrowed * plain.gradients),
        optimizer=ceil(state.optimizer),
        activations=held * ceil(float(segments(numbers.held(c))[i, j])),
        temporary=ceil(float(numbers.temporary(c)[i:j].max())),
        framework=numbers.device.framework_bytes,
    )


def predict(numbers: Numbers, candidate: Candidate, cutting: Cutting, stages: tuple[Stage, ...]) -> Prediction:
    """The step's seconds, where they go, and the memory of every device."""
    c, table = candidate, numbers.table(candidate, float(numbers.problem.memory_limit))
    seconds, bounds = numbers.seconds(c), cutting.bounds
    costs = tuple(_stage_cost(numbers, c, table, s, bounds[s], bounds[s + 1]) for s in range(c.pp))
    busiest = max(range(c.pp), key=lambda s: (costs[s].forward_seconds + costs[s].backward_seconds, -s))
    i, j = bounds[busiest], bounds[busiest + 1]
    count = c.micro_batches
    compute = count * float(seconds.compute[i:j].sum())
    again = count * float(seconds.recompute[i:j].sum())
    collective = count * float(seconds.collective[i:j].sum())
    step, sync = cutting.seconds, cutting.terms.sync
    busy = sum(cost.forward_seconds + cost.backward_seconds for cost in costs)
    pipeline = step - sync
    return Prediction(
        step_seconds=rounded(step),
        samples_per_second=rounded(numbers.problem.global_batch / step) if step else 0.0,
        peak_bytes={
            device: costs[s].memory.total for s, stage in enumerate(stages) for device in sorted(stage.devices)
        },
        bubble_fraction=rounded(max(0.0, 1 - count * busy / (c.pp * pipeline))) if pipeline and c.pp > 1 else 0.0,
        breakdown=Breakdown(
            formula=FORMULAS[c.schedule], compute_seconds=rounded(compute), recompute_seconds=rounded(again),
            collective_seconds=rounded(collective),
            waiting_seconds=rounded(max(0.0, pipeline - compute - again - collective)) if c.pp > 1 else 0.0,
            sync_seconds=rounded(sync), stages=costs,
        ),
    )  # fmt: skip


def _stage_cost(numbers: Numbers, c: Candidate, table: ChainTable, stage: int, i: int, j: int) -> StageCost:
    last = stage == c.pp - 1
    return StageCost(
        name=f"stage{stage}",
        forward_seconds=rounded(float(table.forward[i:j].sum())),
        backward_seconds=rounded(float(table.backward[i:j].sum())),
        transfer_forward_seconds=0.0 if last else rounded(float(table.transfer_forward[stage, j])),
        transfer_backward_seconds=0.0 if last else rounded(float(table.transfer_backward[stage, j])),
        sync_seconds=rounded(float(table.sync[i, j])),
        in_flight=table.held[stage],
        memory=stage_memory(numbers, c, stage, i, j),
    )


def shared_parameters(numbers: Numbers, candidate: Candidate, bounds: tuple[int, ...]) -> tuple[SharedParameter, ...]:
    """Parameters that several blocks use, with the stages that hold them."""
    graph = numbers.problem.graph
    position = {block.name: index for index, block in enumerate(graph.blocks)}
    stage_of = [s for s in range(candidate.pp) for _ in range(bounds[s], bounds[s + 1])]
    found = []
    for name, users in graph.shared_parameters.items():
        places = sorted(position[user] for user in users)
        stages = tuple(sorted({stage_of[place] for place in places}))
        elements = numbers.local_elements(name, places[0], candidate.tp)
        sent = elements * numbers.width if len(stages) > 1 and graph.tensor[name].gradient else 0
        found.append(SharedParameter(name, stages[0], stages, sent))
    return tuple(found)
