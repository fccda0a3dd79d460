"""What of a plan goes beyond other frameworks' engines: it runs on Partita's own runtime alone, for target partita.

Frameworks think of one mesh of pipeline × data × tensor in which a device has one stage. Plans may say more: a device
that serves several stages, other axes, turns of weight gradients; tensor and data parallelism and micro-batches that
differ between stages, and ZeRO stages that differ between blocks.
"""

from __future__ import annotations

from partita.errors import listed
from partita.graph.flows import FLOWS
from partita.plan import Order, Plan
from partita.schedules import find


def beyond(plan: Plan, *, own_micro_batches: bool = False) -> list[str]:
    """A sentence, without a full stop, for each thing that only the target partita runs; none for other plans.

    ``own_micro_batches``: stages may have numbers of micro-batches of their own (an engine made for the plan has them).
    """
    return [
        *_several_stages(plan), *_axes(plan), *_flowing(plan), *_weight_turns(plan.order),
        *_unlike(plan, own_micro_batches), *_zeros(plan),
    ]  # fmt: skip


def _several_stages(plan: Plan) -> list[str]:
    for device in plan.devices:
        names = [f'"{stage.name}"' for stage in plan.stages if device in stage.devices]
        if len(names) > 1:
            return [f"device {device} serves the stages {listed(names)}"]
    return []


def _axes(plan: Plan) -> list[str]:
    found = {axis: stage.name for stage in reversed(plan.stages) for axis in stage.other_axes}
    return [
        f'stage "{name}" has an axis {axis.name}={axis.size}'
        + (" of turns inside its blocks" if axis.kind == "turns" else "")
        for axis, name in found.items()
    ]


def _flowing(plan: Plan) -> list[str]:
    """Frameworks divide samples over copies, not inside one, and between blocks each device has all tokens."""
    for stage in plan.stages:
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            if cut := [dim for dim in FLOWS if dim in strategy.cut_along("tensor")]:
                return [f'block "{block}" has its {cut[0]} cut along tensor']
    return []


def _weight_turns(order: Order) -> list[str]:
    said = any(turn.phase == "weight" for turns in order.turns.values() for turn in turns)
    if said or (order.generator != "turns" and find(order.generator).weight):
        return [f'the order "{order.generator}" has turns of weight gradients']
    return []


def _unlike(plan: Plan, own_micro_batches: bool) -> list[str]:
    sizes = {"tp": [stage.tp for stage in plan.stages], "dp": [stage.dp for stage in plan.stages]}
    if not own_micro_batches:
        sizes["micro_batches"] = [stage.micro_batches for stage in plan.stages]
    return [f"the stages have {what} {listed(counts)}" for what, counts in sizes.items() if len(set(counts)) > 1]


def _zeros(plan: Plan) -> list[str]:
    found = sorted({strategy.zero for stage in plan.stages for strategy in stage.strategies})
    return [f"its blocks have the ZeRO stages {listed(found)}"] if len(found) > 1 else []
