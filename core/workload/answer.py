"""What the planners of profiled graphs answer: stages in order, the time of the slowest, and what is proven of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Plans that are so near the bound are the best ones: what is left is the rounding of sums in another order.
EXACT = 1e-9


@dataclass(frozen=True)
class WorkloadStage:
    """Nodes that one set of devices runs.

    ``seconds``: of one sample, as the format's cost has it. ``bytes``: what a device holds, or the stage's weights
    where the format has no memory. ``on``: where a format has two kinds of devices, which one.
    """

    nodes: tuple[str, ...]
    data_parallel: int
    tensor_parallel: int
    seconds: float
    bytes: float
    recomputed: tuple[str, ...] = ()
    on: str = "accelerator"


@dataclass(frozen=True)
class WorkloadPlan:
    """``seconds_per_sample`` is the slowest stage's; no plan takes less than ``bound_seconds``.

    ``sets``: the downward-closed sets that stages were made of; ``complete``: those were all that the graph has.
    """

    stages: tuple[WorkloadStage, ...]
    bound_seconds: float
    sets: int
    complete: bool

    @property
    def seconds_per_sample(self) -> float:
        return max(stage.seconds for stage in self.stages)

    @property
    def optimal(self) -> bool:
        return self.seconds_per_sample <= self.bound_seconds * (1 + EXACT)

    @property
    def gap(self) -> float:
        """By what share of its time the plan may be above the best."""
        return max(0.0, 1 - self.bound_seconds / self.seconds_per_sample) if self.seconds_per_sample else 0.0


def document(plan: WorkloadPlan, name: str, graph: str, devices: int) -> Mapping[str, Any]:
    """The plan as JSON has it, without the seconds that the search took."""
    return {
        "version": 1,
        "format": name,
        "graph": graph,
        "devices": devices,
        "seconds_per_sample": plan.seconds_per_sample,
        "stages": [
            {
                "nodes": list(stage.nodes), "on": stage.on, "data_parallel": stage.data_parallel,
                "tensor_parallel": stage.tensor_parallel, "seconds": stage.seconds, "bytes": stage.bytes,
                "recomputed": list(stage.recomputed),
            }
            for stage in plan.stages
        ],
        "search": {
            "optimal": plan.optimal, "bound_seconds": plan.bound_seconds, "gap": plan.gap, "sets": plan.sets,
            "all_sets": plan.complete,
        },
    }  # fmt: skip
