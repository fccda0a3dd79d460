"""What the tasks of a plan take: the planner's own cost model, asked for a plan that exists.

Nothing is priced here. Seconds of turns, of the end of a step, bytes of state and of activations come from
``planner.numbers``, with the devices where the plan puts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import ceil, prod

import numpy as np

from partita.cluster import Cluster, Link
from partita.cluster.placement import Placement, placed
from partita.cost.alike import Alike, alike, require_tp
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import MemoryBytes, Plan
from partita.planner.build import stage_memory
from partita.planner.candidates import Candidate
from partita.planner.formula import ChainTable, segments
from partita.planner.numbers import BlockSeconds, Numbers
from partita.problem import Problem
from partita.spacetime.lower import require_blocks
from partita.spacetime.program import Transfer

# With it, seconds of a collective are the bytes that a device sends.
UNIT = Link(1.0)


@dataclass(frozen=True)
class Costs:
    """Seconds of a task by (stage, kind), of which ``collective_seconds`` are in collectives that send so many bytes.

    ``memory`` by stage, with the activations of one micro-batch. ``table`` and ``bounds`` are the same numbers as the
    planner's formula takes them.
    """

    seconds: Mapping[tuple[int, str], float]
    collective_seconds: Mapping[tuple[int, str], float]
    collective_bytes: Mapping[tuple[int, str], float]
    size_bytes: Callable[[Transfer], float]
    memory: tuple[MemoryBytes, ...]
    table: ChainTable
    bounds: tuple[int, ...]


def costs(graph: Graph, plan: Plan, cluster: Cluster, groups: Alike | None = None) -> Costs:
    """The costs of a plan's tasks on a cluster. ``graph`` may have any number of samples; ``groups``: if known already.

    PlanError where the plan isn't of this graph, where this cluster has no such devices, and for cuts and stages whose
    costs aren't known.
    """
    groups = groups or alike(graph)
    candidate = _candidate(plan)
    bounds = _bounds(graph, plan)
    require_tp(graph, groups, candidate.tp)
    problem = Problem(graph, cluster, plan.global_batch, plan.precision, plan.optimizer, plan.target)
    numbers = Numbers(problem, groups, places={candidate.mesh: _placement(plan, cluster, candidate)})
    _check_cuts(plan, numbers, candidate)
    again = np.array([s.recompute == "full" for stage in plan.stages for s in stage.strategies])
    seconds = _block_seconds(numbers, candidate, again)
    tasks, collective = _tasks(numbers, candidate, bounds, seconds)
    unit = replace(cluster, intra_node=UNIT, inter_node=UNIT, cores=None, node_bytes_per_second=None)
    places = {candidate.mesh: numbers.placement(candidate)}
    counting = Numbers(replace(problem, cluster=unit), groups, numbers.costs_by_tp, places)
    _, counted = _tasks(counting, candidate, bounds, _block_seconds(counting, candidate, again))
    table = numbers.table(candidate, float(problem.memory_limit))
    table = replace(table, forward=seconds.forward, backward=seconds.backward)
    return Costs(
        tasks, collective, counted, _sizes(numbers, candidate),
        tuple(_memory(numbers, candidate, again, stage, i, j) for stage, (i, j) in enumerate(_spans(bounds))),
        table, bounds,
    )  # fmt: skip


def _spans(bounds: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def _candidate(plan: Plan) -> Candidate:
    """The plan as the planner lists it; what differs between blocks (recomputation) is looked at later."""
    shapes = {(stage.dp, stage.tp, stage.samples, stage.micro_batches) for stage in plan.stages}
    zeros = {strategy.zero for stage in plan.stages for strategy in stage.strategies}
    if len(shapes) > 1 or len(zeros) > 1:
        raise PlanError(
            f"stages of different (dp, tp, samples, micro-batches) {sorted(shapes)} or ZeRO {sorted(zeros)} "
            "can't be simulated yet; give every stage the same"
        )
    ((dp, tp, samples, micro_batches),) = shapes
    if samples % dp:
        raise PlanError(f"a turn's {samples} samples can't be divided over dp={dp}")
    (zero,) = zeros
    full = all(strategy.recompute == "full" for stage in plan.stages for strategy in stage.strategies)
    return Candidate(len(plan.stages), tp, dp, zero, full, plan.order.generator, samples // dp, micro_batches)


def _bounds(graph: Graph, plan: Plan) -> tuple[int, ...]:
    require_blocks(graph, plan)
    bounds = [0]
    for stage in plan.stages:
        bounds.append(bounds[-1] + len(stage.blocks))
    return tuple(bounds)


def _placement(plan: Plan, cluster: Cluster, candidate: Candidate) -> Placement:
    """Where the plan's groups lie on this cluster."""
    odd = [device for device in plan.devices if not 0 <= device < cluster.devices]
    if odd:
        raise PlanError(
            f"the plan uses device {odd[0]}, cluster {cluster.name} has devices 0 to {cluster.devices - 1}; "
            f"it was planned for {plan.cluster}"
        )
    dp, tp, pp = candidate.mesh
    return placed(cluster, plan.devices, dp, tp, pp)


def _check_cuts(plan: Plan, numbers: Numbers, candidate: Candidate) -> None:
    """The cost model knows blocks whose classes are all cut, or none."""
    strategies = [(block, s) for stage in plan.stages for block, s in zip(stage.blocks, stage.strategies, strict=True)]
    for (block, strategy), cost in zip(strategies, numbers.costs(candidate.tp), strict=True):
        cuts = strategy.cut_along("tensor")
        if candidate.tp > 1 and cuts != set(cost.cuts):
            raise PlanError(
                f'block "{block}" cuts {sorted(cuts)} over tp={candidate.tp}; what it takes is known only where all '
                f"that can be cut is: {sorted(set(cost.cuts))}"
            )


def _chosen(candidate: Candidate, again: np.ndarray, values: Callable[[Candidate], np.ndarray]) -> np.ndarray:
    """[n] values of blocks, each with its own choice of recomputation."""
    if again.all() or not again.any():
        return values(candidate)
    with_it, without = (values(replace(candidate, recompute=choice)) for choice in (True, False))
    found: np.ndarray = np.where(again, with_it, without)
    return found


def _block_seconds(numbers: Numbers, candidate: Candidate, again: np.ndarray) -> BlockSeconds:
    def of(name: str) -> np.ndarray:
        return _chosen(candidate, again, lambda c: getattr(numbers.seconds(c), name))

    return BlockSeconds(*(of(field.name) for field in fields(BlockSeconds)))


def _tasks(
    numbers: Numbers, candidate: Candidate, bounds: tuple[int, ...], seconds: BlockSeconds
) -> tuple[dict[tuple[int, str], float], dict[tuple[int, str], float]]:
    """Seconds of every task, and those of its collectives. Sums are taken as the planner takes them."""
    forward, backward = segments(seconds.forward), segments(seconds.backward)
    forward_collective, backward_collective = (
        segments(seconds.forward_collective),
        segments(seconds.backward_collective),
    )
    trained, tensors = segments(numbers.trained(candidate.tp)), segments(numbers.trained_tensors())
    tasks: dict[tuple[int, str], float] = {}
    collective: dict[tuple[int, str], float] = {}
    for stage, (i, j) in enumerate(_spans(bounds)):
        own = float(trained[i, j])
        gather = numbers.gather_seconds(candidate, own)
        reduce = numbers.reduce_seconds(candidate, own)
        update = numbers.update_seconds(candidate, own, float(tensors[i, j]))
        for kind, total, part in (
            ("forward", float(forward[i, j]), float(forward_collective[i, j])),
            ("backward", float(backward[i, j]), float(backward_collective[i, j])),
            ("reduce", reduce, reduce),
            ("update", update + gather, gather),
        ):
            tasks[stage, kind] = total
            collective[stage, kind] = part
    return tasks, collective


def _sizes(numbers: Numbers, candidate: Candidate) -> Callable[[Transfer], float]:
    """Bytes of a message: a micro-batch's values grow with its samples, and have the precision's dtype."""
    ratio, item = numbers.ratio(candidate), numbers.item

    def size_bytes(transfer: Transfer) -> float:
        size = prod(transfer.shape) * item(transfer.dtype)
        return size if transfer.what.startswith("parameter") else size * ratio

    return size_bytes


def _memory(numbers: Numbers, candidate: Candidate, again: np.ndarray, stage: int, i: int, j: int) -> MemoryBytes:
    """As the planner counts it, with one micro-batch in flight."""
    held = _chosen(candidate, again, numbers.held)
    temporary = _chosen(candidate, again, numbers.temporary)
    return replace(
        stage_memory(numbers, candidate, stage, i, j),
        activations=ceil(float(segments(held)[i, j])),
        temporary=ceil(float(temporary[i:j].max())),
    )
