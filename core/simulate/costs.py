"""What the tasks of a plan take: its stages, each priced by itself (``simulate.stages``).

Nothing is priced here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from partita.cluster import Cluster
from partita.cost.alike import Alike, alike
from partita.cost.division import AttentionKernel
from partita.graph import Graph
from partita.plan import MemoryBytes, Plan
from partita.planner.joint.table import JointTable
from partita.simulate.stages import Stages, whole_links
from partita.simulate.table import stages_table
from partita.spacetime.lower import require_blocks
from partita.spacetime.program import Transfer


@dataclass(frozen=True)
class Costs:
    """Seconds of a task by (stage, kind), of which ``collective_seconds`` are in collectives that send so many bytes.

    ``memory`` by stage, with the activations of one micro-batch: what the stage adds to those before it on the same
    device. ``table`` has the same numbers as the planner's formula takes them; None for a plan that no formula speaks
    of.
    """

    seconds: Mapping[tuple[int, str], float]
    collective_seconds: Mapping[tuple[int, str], float]
    collective_bytes: Mapping[tuple[int, str], float]
    size_bytes: Callable[[Transfer], float]
    memory: tuple[MemoryBytes, ...]
    table: JointTable | None


def costs(
    graph: Graph, plan: Plan, cluster: Cluster, groups: Alike | None = None, attention: AttentionKernel = "fused"
) -> Costs:
    """The costs of a plan's tasks on a cluster. ``graph`` may have any number of samples; ``groups``: if known already.

    ``attention``: whether scores lie in memory (``cost.attention``). PlanError where the plan isn't of this graph,
    where this cluster has no such devices, and for cuts that a block doesn't have or pieces that don't divide it.
    """
    require_blocks(graph, plan)
    stages = Stages(graph, plan, cluster, groups or alike(graph), attention)
    tasks, collective = _tasks(stages)
    _, counted = _tasks(stages.on(whole_links(cluster)))
    return Costs(
        tasks, collective, counted, _sizes(stages),
        tuple(stages.memory(index) for index in range(len(plan.stages))), stages_table(stages, tasks),
    )  # fmt: skip


def _tasks(stages: Stages) -> tuple[dict[tuple[int, str], float], dict[tuple[int, str], float]]:
    """Seconds of every task, and those of its collectives."""
    tasks: dict[tuple[int, str], float] = {}
    collective: dict[tuple[int, str], float] = {}
    for index, stage in enumerate(stages.plan.stages):
        turns = stages.turns(stage)
        reduce, update, gather = stages.ending(stage)
        later = turns.weight if index in stages.put_off else 0.0
        kinds = {
            "forward": (turns.forward, turns.forward_collective),
            "backward": (turns.backward - later, turns.backward_collective),
            "reduce": (reduce, reduce),
            "update": (update + gather, gather),
        }
        if index in stages.put_off:
            kinds["weight"] = (later, 0.0)
        for kind, (total, part) in kinds.items():
            tasks[index, kind] = total
            collective[index, kind] = part
    return tasks, collective


def _sizes(stages: Stages) -> Callable[[Transfer], float]:
    """Bytes of a message, in the precision's dtype: values grow with the samples of a turn, but for those that all
    samples share. What goes in parts has its samples in its shape."""
    ratios = [stages.ratio(stage) for stage in stages.plan.stages]

    def size_bytes(transfer: Transfer) -> float:
        size = prod(transfer.shape) * stages.item(transfer.dtype)
        grows = transfer.samples is None and transfer.tensor in stages.graph.sampled
        return size * ratios[transfer.source] if grows else size

    return size_bytes
