"""A plan's stages as the planner's formula sees them: a table with one block a stage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita.cost.collective import point_to_point_seconds
from partita.planner.joint.boundary import boundary_bytes, messages
from partita.planner.joint.formula import FORMULAS
from partita.planner.joint.table import Chosen, JointTable, Prices
from partita.simulate.stages import Stages


def stages_table(stages: Stages, seconds: Mapping[tuple[int, str], float]) -> JointTable | None:
    """The table of a plan, from the seconds of its tasks by (stage, kind); None where no formula speaks of it: another
    schedule, devices that serve several stages, stages of unlike numbers of micro-batches."""
    plan = stages.plan
    several = sum(len(stage.devices) for stage in plan.stages) > len(plan.devices)
    counts = {stage.micro_batches for stage in plan.stages}
    if plan.order.generator not in FORMULAS or several or len(counts) > 1:
        return None
    count = len(plan.stages)
    crosses = np.array([0, *(_crosses(stages, index) for index in range(count - 1)), 0], dtype=np.int64)
    transfers = [np.zeros((2, count + 1, count, count)) for _ in range(2)]
    for index in range(count - 1):
        for found, moved in zip(transfers, _transfer(stages, index, bool(crosses[index + 1])), strict=True):
            found[:, index + 1, index, index + 1] = moved
    link = stages.cluster.link(bool(crosses.any()))
    sync = [
        seconds[index, "reduce"] + seconds[index, "update"]
        + sum(2 * point_to_point_seconds(lent * stages.per.parameters, link) for lent in stages.lent(index))
        for index in range(count)
    ]  # fmt: skip
    memory = [stages.memory(index) for index in range(count)]
    depth = plan.order.arguments.get("depth", 0)
    # 1f1b has one for all stages.
    assert isinstance(depth, int)
    return JointTable(
        prices=_prices(
            forward=[seconds[index, "forward"] for index in range(count)],
            backward=[seconds[index, "backward"] for index in range(count)],
            sync=sync,
            fixed_bytes=[each.total - each.activations - each.temporary for each in memory],
            held_bytes=[each.activations for each in memory],
            temporary_bytes=[each.temporary for each in memory],
        ),
        units=np.ones(count, dtype=np.int64), port=np.arange(count),
        # Stage s begins at unit s and nowhere else.
        prices_of=np.where(np.eye(count, dtype=bool), np.arange(count)[:, None], -1),
        crosses=crosses, transfer_forward=transfers[0], transfer_backward=transfers[1],
        memory_limit=float(stages.cluster.weakest(plan.devices).memory_bytes),
        micro_batches=counts.pop(), most_stages=count,
        schedule="gpipe" if plan.order.generator == "gpipe" else "1f1b",
        depth=depth,
    )  # fmt: skip


def chosen(table: JointTable) -> tuple[Chosen, ...]:
    """The stages of such a table."""
    return tuple(Chosen(index, index + 1, index, index, (0,)) for index in range(table.blocks))


def _prices(**by_stage: list[float]) -> Prices:
    """Prices where stage s has block s alone."""
    count = len(by_stage["forward"])
    each = {name: np.zeros((count, count, 1)) for name in (
        "enter_forward", "enter_backward", "leave_forward", "leave_backward", *by_stage
    )}  # fmt: skip
    for name, values in by_stage.items():
        each[name][np.arange(count), np.arange(count), 0] = values
    pairs, lent = np.zeros((count, count, 1, 1)), np.zeros((count, count, count))
    return Prices(
        **each, change_forward=pairs, change_backward=pairs, base_bytes=np.zeros(count), base_sync=np.zeros(count),
        lent_bytes=lent, lent_sync=lent,
    )  # fmt: skip


def _crosses(stages: Stages, index: int) -> bool:
    """Whether a message between a stage and the next goes from node to node."""
    before, after = stages.plan.stages[index : index + 2]
    node = stages.cluster.node_of
    found, _ = messages(before.dp, before.width, after.dp, after.width)
    return any(node[before.devices[source]] != node[after.devices[reader]] for source, reader in found)


def _transfer(stages: Stages, index: int, crosses: bool) -> tuple[float, float]:
    """Seconds of what crosses between a stage and the next, forward and backward."""
    before, after = stages.plan.stages[index : index + 2]
    at, devices = stages.number[after.blocks[0]], (*before.devices, *after.devices)
    link = stages.cluster.link(crosses, devices)
    ports, ratio = ((before.dp, before.width), (after.dp, after.width)), before.samples / stages.graph.samples
    forward = boundary_bytes(stages.crossing.forward[at], ratio, *ports)
    backward = boundary_bytes(stages.crossing.backward[at], ratio, *reversed(ports))
    return point_to_point_seconds(forward, link), point_to_point_seconds(backward, link)
