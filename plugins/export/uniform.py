"""What every framework here takes for granted: one mesh of stages alike, all ranks at work, 1F1B.

A plan that is more than that runs in Partita's own runtime only; the reasons say which numbers stand in the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.errors import listed
from partita.plan import Order, Plan
from partita.plugins.export.exported import Inexpressible
from partita.reach import beyond
from partita.schedules import Turn, find, one_f_one_b

PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Uniform:
    """The numbers that all stages share. ``recompute`` is None where blocks differ in what is computed again."""

    pp: int
    dp: int
    tp: int
    micro_batch: int
    micro_batches: int
    zero: int
    recompute: str | None


def uniform(plan: Plan, framework: str) -> tuple[Uniform, list[str]]:
    """The plan's numbers (those of the first stage), and a sentence for each way in which it is not uniform.

    Inexpressible for a plan that only Partita's own runtime runs: no change of a number would help.
    """
    if found := beyond(plan):
        reason = (
            f"No file for {framework} can say that {'; '.join(found)}. Plan for --target partita and start it with "
            "partita run RECIPE --plan FILE."
        )
        raise Inexpressible(framework, [reason])
    first = plan.stages[0]
    reasons = [
        *_uneven_copies(plan, framework),
        *_devices(plan, framework),
        *_order(plan, framework),
        *_offload(plan, framework),
    ]
    if plan.precision not in PRECISIONS:
        reasons.append(f"{framework} does not train in {plan.precision}; {', '.join(PRECISIONS)} work.")
    recomputes = sorted({strategy.recompute for stage in plan.stages for strategy in stage.strategies})
    shared = Uniform(
        pp=len(plan.stages), dp=first.dp, tp=first.tp, micro_batch=first.samples // first.dp,
        micro_batches=first.micro_batches, zero=first.strategies[0].zero,
        recompute=recomputes[0] if len(recomputes) == 1 else None,
    )  # fmt: skip
    return shared, reasons


def _uneven_copies(plan: Plan, framework: str) -> list[str]:
    return [
        f'Stage "{stage.name}" gives its {stage.dp} copies {stage.samples} samples a micro-batch, which is no whole '
        f"number each; {framework} gives every copy as many."
        for stage in plan.stages
        if stage.samples % stage.dp
    ][:1]


def _devices(plan: Plan, framework: str) -> list[str]:
    """Ranks are numbered pipeline stage first, then copy, then tensor piece; a plan numbers its devices so too."""
    if plan.idle_devices:
        used = len(plan.devices)
        return [
            f"It leaves {'device' if len(plan.idle_devices) == 1 else 'devices'} {listed(plan.idle_devices)} idle and "
            f"{framework} puts every rank to work; plan for a cluster of {used} device{'s' if used > 1 else ''}."
        ]
    if plan.devices != tuple(range(len(plan.devices))):
        place = next(rank for rank, device in enumerate(plan.devices) if rank != device)
        return [
            f"It puts rank {place} on device {plan.devices[place]}; {framework} puts each rank on the device of its "
            "number."
        ]
    return []


def _turns(order: Order) -> dict[int, list[Turn]]:
    return find(order.generator)(order.stages, order.micro_batches, **order.arguments)


def _order(plan: Plan, framework: str) -> list[str]:
    order = plan.order
    if order.stages != len(plan.stages):
        return [f"Its order is of {order.stages} stages and it has {len(plan.stages)}."]
    # Schedules that come to the same order are the same, such as all of them with one micro-batch. For one that goes by
    # the graph of stages the order of a chain says nothing.
    if (
        order.generator == "turns"
        or find(order.generator).generate_on is not None
        or _turns(order) != one_f_one_b(order.stages, order.micro_batches)
    ):
        return [f'{framework} has no schedule "{order.words}", it orders turns as 1f1b; plan with --fix schedule=1f1b.']
    return []


def _offload(plan: Plan, framework: str) -> list[str]:
    for stage in plan.stages:
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            if strategy.offload:
                return [
                    f'What block "{block}" keeps for its backward pass waits in the host\'s memory; no file for '
                    f"{framework} says so here."
                ]
    return []
