"""What the tasks of a plan take: the planner's own cost model, asked for a plan that exists.

Nothing is priced here. Of a plan like those that the planner lists, seconds of turns, of the end of a step, bytes of
state and of activations come from ``planner.numbers``, with the devices where the plan puts them: the same floats. Any
other plan is priced stage by stage (``simulate.stages``), from the same costs of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, prod

import numpy as np

from partita.cluster import Cluster
from partita.cluster.placement import Placement, placed
from partita.cost.alike import Alike, alike, require_tp
from partita.cost.division import AttentionKernel
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import BATCH_CUT, Cut, MemoryBytes, Plan
from partita.planner.build import FORMULAS, stage_memory
from partita.planner.candidates import Candidate
from partita.planner.formula import ChainTable, segments
from partita.planner.numbers import BlockSeconds, Numbers
from partita.problem import Problem
from partita.simulate.stages import Stages, whole_links
from partita.spacetime.lower import require_blocks
from partita.spacetime.program import Transfer


@dataclass(frozen=True)
class Costs:
    """Seconds of a task by (stage, kind), of which ``collective_seconds`` are in collectives that send so many bytes.

    ``memory`` by stage, with the activations of one micro-batch: what the stage adds to those before it on the same
    device. ``table`` and ``bounds`` are the same numbers as the planner's formula takes them; ``table`` is None for a
    plan that no formula speaks of.
    """

    seconds: Mapping[tuple[int, str], float]
    collective_seconds: Mapping[tuple[int, str], float]
    collective_bytes: Mapping[tuple[int, str], float]
    size_bytes: Callable[[Transfer], float]
    memory: tuple[MemoryBytes, ...]
    table: ChainTable | None
    bounds: tuple[int, ...]


def costs(
    graph: Graph, plan: Plan, cluster: Cluster, groups: Alike | None = None, attention: AttentionKernel = "fused"
) -> Costs:
    """The costs of a plan's tasks on a cluster. ``graph`` may have any number of samples; ``groups``: if known already.

    ``attention``: whether scores lie in memory (``cost.attention``). PlanError where the plan isn't of this graph,
    where this cluster has no such devices, and for cuts that a block doesn't have or pieces that don't divide it.
    """
    groups = groups or alike(graph)
    bounds = _bounds(graph, plan)
    # The planner's numbers take all devices for alike.
    alike_nodes = len(cluster.different_kinds) == 1
    if attention == "fused" and alike_nodes and _uniform(plan, groups, bounds):
        return _planned(graph, plan, cluster, groups, bounds)
    return _by_stage(Stages(graph, plan, cluster, groups, attention), bounds)


def _uniform(plan: Plan, groups: Alike, bounds: tuple[int, ...]) -> bool:
    """Whether the planner could have listed the plan: its formula's schedules, all stages alike, all or no classes."""
    shapes = {(stage.dp, stage.tp, stage.samples, stage.micro_batches) for stage in plan.stages}
    zeros = {strategy.zero for stage in plan.stages for strategy in stage.strategies}
    devices = sum(len(stage.devices) for stage in plan.stages)
    if len(shapes) > 1 or len(zeros) > 1 or plan.order.generator not in FORMULAS or devices > len(plan.devices):
        return False
    if any(stage.other_axes or any(s.offload for s in stage.strategies) for stage in plan.stages):
        return False
    ((_, tp, _, _),) = shapes
    for stage, (i, j) in zip(plan.stages, _spans(bounds), strict=True):
        for kind, strategy in zip(groups.kinds[i:j], stage.strategies, strict=True):
            wanted = {Cut(cut.name, ("tensor",)) for cut in groups.classes[kind]} if tp > 1 else set()
            if {cut for cut in strategy.cuts if tp > 1 or cut.axes != ("tensor",)} - {BATCH_CUT} != wanted:
                return False
    return True


def _planned(graph: Graph, plan: Plan, cluster: Cluster, groups: Alike, bounds: tuple[int, ...]) -> Costs:
    """From the planner's numbers."""
    candidate = _candidate(plan)
    require_tp(graph, groups, candidate.tp)
    problem = Problem(graph, cluster, plan.global_batch, plan.precision, plan.optimizer, plan.target)
    numbers = Numbers(problem, groups, places={candidate.mesh: _placement(plan, cluster, candidate)})
    again = np.array([s.recompute == "full" for stage in plan.stages for s in stage.strategies])
    seconds = _block_seconds(numbers, candidate, again)
    tasks, collective = _tasks(numbers, candidate, bounds, seconds)
    places = {candidate.mesh: numbers.placement(candidate)}
    counting = Numbers(replace(problem, cluster=whole_links(cluster)), groups, numbers.costs_by_tp, places)
    _, counted = _tasks(counting, candidate, bounds, _block_seconds(counting, candidate, again))
    table = numbers.table(candidate, float(problem.memory_limit))
    table = replace(table, forward=seconds.forward, backward=seconds.backward)
    return Costs(
        tasks, collective, counted, _sizes(numbers.item, [numbers.ratio(candidate)] * len(plan.stages)),
        tuple(_memory(numbers, candidate, again, stage, i, j) for stage, (i, j) in enumerate(_spans(bounds))),
        table, bounds,
    )  # fmt: skip


def _by_stage(stages: Stages, bounds: tuple[int, ...]) -> Costs:
    """From the stages, each by itself."""
    plan = stages.plan
    put_off = stages.put_off
    tasks, collective = _stage_tasks(stages, put_off)
    _, counted = _stage_tasks(stages.on(whole_links(stages.cluster)), put_off)
    return Costs(
        tasks, collective, counted, _sizes(stages.item, [stages.ratio(stage) for stage in plan.stages]),
        tuple(stages.memory(index) for index in range(len(plan.stages))), None, bounds,
    )  # fmt: skip


def _stage_tasks(
    stages: Stages, put_off: frozenset[int]
) -> tuple[dict[tuple[int, str], float], dict[tuple[int, str], float]]:
    """Seconds of every task, and those of its collectives. ``put_off``: stages with turns for gradients of weights."""
    tasks: dict[tuple[int, str], float] = {}
    collective: dict[tuple[int, str], float] = {}
    for index, stage in enumerate(stages.plan.stages):
        turns = stages.turns(stage)
        reduce, update, gather = stages.ending(stage)
        later = turns.weight if index in put_off else 0.0
        for kind, total, part in (
            ("forward", turns.forward, turns.forward_collective),
            ("backward", turns.backward - later, turns.backward_collective),
            ("weight", later, 0.0),
            ("reduce", reduce, reduce),
            ("update", update + gather, gather),
        ):
            tasks[index, kind] = total
            collective[index, kind] = part
    return tasks, collective


def _spans(bounds: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def _candidate(plan: Plan) -> Candidate:
    """The plan as the planner lists it; what differs between blocks (recomputation) is looked at later."""
    stage = plan.stages[0]
    if stage.samples % stage.dp:
        raise PlanError(f"a turn's {stage.samples} samples can't be divided over dp={stage.dp}")
    full = all(strategy.recompute == "full" for stage in plan.stages for strategy in stage.strategies)
    return Candidate(
        len(plan.stages), stage.tp, stage.dp, stage.strategies[0].zero, full, plan.order.generator,
        stage.samples // stage.dp, stage.micro_batches,
    )  # fmt: skip


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


def _sizes(item: Callable[[str], int], ratios: Sequence[float]) -> Callable[[Transfer], float]:
    """Bytes of a message: a micro-batch's values grow with its samples, and have the precision's dtype.

    ``ratios``: the samples of a stage's turn in units of the graph's. What goes in parts has its samples in its shape.
    """

    def size_bytes(transfer: Transfer) -> float:
        size = prod(transfer.shape) * item(transfer.dtype)
        whole = transfer.samples is None and not transfer.what.startswith("parameter")
        return size * ratios[transfer.source] if whole else size

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
