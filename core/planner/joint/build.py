"""Chosen stages become a plan: devices and strategies, the order, the prediction of the formula."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum

import numpy as np

from partita.plan import (
    Breakdown,
    MemoryBytes,
    Order,
    Plan,
    Prediction,
    Search,
    SharedParameter,
    Stage,
    StageCost,
    Strategy,
    rounded,
)  # fmt: skip
from partita.planner.joint.formula import FORMULAS, StageNumbers, stage_numbers, terms, transfer
from partita.planner.joint.lent import local_elements
from partita.planner.joint.price import Pricing
from partita.planner.joint.space import Family, Option, Shape
from partita.planner.joint.table import Chosen, JointTable
from partita.schedules import Argument


def build(pricing: Pricing, family: Family, table: JointTable, chosen: Sequence[Chosen], search: Search) -> Plan:
    """The plan of an answer to a table of a family, without reasons."""
    problem = pricing.problem
    stages = plan_stages(pricing, family, table, chosen)
    used = {device for stage in stages for device in stage.devices}
    depth: dict[str, Argument] = {"depth": table.depth} if table.depth else {}
    return Plan(
        model=problem.graph.name, problem=problem.digest, cluster=problem.cluster.name, target=problem.target,
        precision=problem.precision, optimizer=problem.optimizer, seq=problem.graph.seq,
        global_batch=problem.global_batch, schedule=table.schedule,
        order=Order(table.schedule, len(stages), table.micro_batches, depth),
        stages=stages, shared_parameters=shared_parameters(pricing, stages),
        predicted=predict(pricing, family, table, chosen, stages), reasons=(), search=search,
        idle_devices=tuple(sorted(set(range(problem.cluster.devices)) - used)), profile=problem.cluster.profile,
    )  # fmt: skip


def plan_stages(pricing: Pricing, family: Family, table: JointTable, chosen: Sequence[Chosen]) -> tuple[Stage, ...]:
    """The stages of an answer, with devices in their order."""
    blocks, samples = pricing.problem.graph.blocks, pricing.problem.global_batch // table.micro_batches
    found = []
    for number, stage in enumerate(chosen):
        shape, first = family.shapes[stage.shape], pricing.first + stage.unit * family.unit
        options = [family.options[m] for m in stage.options]
        strategies = tuple(strategy(pricing, index, shape, option) for index, option in enumerate(options, stage.start))
        names = tuple(block.name for block in blocks[stage.start : stage.stop])
        devices = tuple(range(first, first + shape.devices))
        axes = tuple(dict.fromkeys((*shape.manner.axes, *(a for o in options for a in o.run(shape).axes))))
        found.append(
            Stage(f"stage{number}", names, devices, shape.dp, shape.tp, samples, table.micro_batches, strategies, axes)
        )
    return tuple(found)


def strategy(pricing: Pricing, block: int, shape: Shape, option: Option) -> Strategy:
    """A block's strategy in a stage of a shape."""
    stands = pricing.problem.graph.blocks[pricing.groups.kinds[block]]
    found = option.run(shape).strategy(stands, pricing.classes(block), shape.tp, shape.zero, option.recompute)
    assert found is not None, (stands.name, option)
    return found


def predict(
    pricing: Pricing, family: Family, table: JointTable, chosen: Sequence[Chosen], stages: Sequence[Stage]
) -> Prediction:
    """The step's seconds by the formula, where they go on the busiest stage, and the memory of every device."""
    behind = range(len(chosen) - 1, -1, -1)
    numbers = [stage_numbers(table, stage, after) for stage, after in zip(chosen, behind, strict=True)]
    memory = [stage_memory(pricing, family, table, stage, after) for stage, after in zip(chosen, behind, strict=True)]
    moved = [transfer(table, *pair) for pair in zip(chosen[:-1], chosen[1:], strict=True)] + [(0.0, 0.0)]
    found, count = terms(table, chosen), table.micro_batches
    step = found.step_seconds(count)
    costs = tuple(
        StageCost(
            name=stage.name, forward_seconds=rounded(each.forward), backward_seconds=rounded(each.backward),
            transfer_forward_seconds=rounded(over[0]), transfer_backward_seconds=rounded(over[1]),
            sync_seconds=rounded(each.sync), in_flight=table.held(after), memory=held,
        )
        for stage, each, over, after, held in zip(stages, numbers, moved, behind, memory, strict=True)
    )  # fmt: skip
    busiest = max(range(len(chosen)), key=lambda s: (numbers[s].forward + numbers[s].backward, -s))
    again, collective = _parts(pricing, family, table, chosen[busiest])
    compute = numbers[busiest].forward + numbers[busiest].backward - again - collective
    pipeline, several = step - found.sync, len(chosen) > 1
    waiting = pipeline - count * (numbers[busiest].forward + numbers[busiest].backward)
    return Prediction(
        step_seconds=rounded(step),
        samples_per_second=rounded(pricing.problem.global_batch / step) if step else 0.0,
        peak_bytes={
            device: held.total for stage, held in zip(stages, memory, strict=True) for device in stage.devices
        },
        bubble_fraction=_bubble(numbers, stages, count, pipeline) if several and pipeline else 0.0,
        breakdown=Breakdown(
            formula=FORMULAS[table.schedule], compute_seconds=rounded(count * compute),
            recompute_seconds=rounded(count * again), collective_seconds=rounded(count * collective),
            waiting_seconds=rounded(max(0.0, waiting)) if several else 0.0, sync_seconds=rounded(found.sync),
            stages=costs,
        ),
    )  # fmt: skip


def stage_memory(pricing: Pricing, family: Family, table: JointTable, stage: Chosen, behind: int) -> MemoryBytes:
    """Bytes by item on each device of a stage; they add up to what the search compared, except for what these devices
    have less than the largest."""
    prices, v = table.prices, pricing.variant(family, table, stage)
    ways, kind = pricing.ways(family), pricing.kinds.of
    inside = np.arange(stage.start, stage.stop), np.array(stage.options)
    state = [
        fsum(float(ways.side(family.options[m]).state[item][v, kind[i]]) for i, m in zip(*inside, strict=True))
        for item in range(3)
    ]
    lent = fsum(prices.lent_bytes[v, stage.start, inside[0]].tolist())
    of_weights = ways.per.parameters / (ways.per.parameters + ways.per.gradients)
    return MemoryBytes(
        parameters=ceil(state[0] + lent * of_weights),
        gradients=ceil(state[1] + lent * (1 - of_weights)),
        optimizer=ceil(state[2]),
        activations=ceil(table.held(behind) * fsum(prices.held_bytes[v, inside[0], inside[1]].tolist())),
        temporary=ceil(float(prices.temporary_bytes[v, inside[0], inside[1]].max())),
        framework=ways.framework_bytes(v),
    )


def _parts(pricing: Pricing, family: Family, table: JointTable, stage: Chosen) -> tuple[float, float]:
    """Seconds of one micro-batch in which a stage computes again, and in which it waits for its own collectives."""
    prices, v = table.prices, pricing.variant(family, table, stage)
    turns = {m: pricing.ways(family).turns(family.options[m], table.micro_batches) for m in set(stage.options)}
    again, collective, before = 0.0, 0.0, -1
    for i, m in enumerate(stage.options, stage.start):
        at, turn = (v, pricing.kinds.of[i]), turns[m]
        again += float(np.broadcast_to(turn.again, turn.forward.shape)[at])
        collective += float(turn.forward_collective[at] + turn.backward_collective[at])
        if i > stage.start:
            collective += float(prices.change_forward[v, i, before, m] + prices.change_backward[v, i, before, m])
        before = m
    ends = (prices.enter_forward, prices.enter_backward, stage.start, stage.options[0]), (
        prices.leave_forward, prices.leave_backward, stage.stop - 1, stage.options[-1],
    )  # fmt: skip
    return again, collective + sum(float(one[v, i, m] + two[v, i, m]) for one, two, i, m in ends)


def _bubble(numbers: Sequence[StageNumbers], stages: Sequence[Stage], count: int, pipeline: float) -> float:
    """The part of the devices' time in the pipeline in which they run no turn."""
    devices = [len(stage.devices) for stage in stages]
    busy = fsum(n * (each.forward + each.backward) for n, each in zip(devices, numbers, strict=True))
    return rounded(max(0.0, 1 - count * busy / (sum(devices) * pipeline)))


def shared_parameters(pricing: Pricing, stages: Sequence[Stage]) -> tuple[SharedParameter, ...]:
    """Parameters that several blocks use, with the stages that hold them."""
    graph = pricing.problem.graph
    at = {block: index for index, stage in enumerate(stages) for block in stage.blocks}
    found = []
    for name, users in graph.shared_parameters.items():
        holding = tuple(sorted({at[user] for user in users}))
        owner = stages[holding[0]]
        own = owner.strategies[owner.blocks.index(users[0])]
        elements = local_elements(graph, pricing.groups, name, 1 if own.cut_along("tensor") == {"batch"} else owner.tp)
        sent = elements * pricing.item_bytes if len(holding) > 1 and graph.tensor[name].gradient else 0
        found.append(SharedParameter(name, holding[0], holding, sent))
    return tuple(found)
