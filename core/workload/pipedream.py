"""Exact plans under PipeDream's cost with one level of machines (Narayanan et al., SOSP 2019, section 3.1).

Stage i has r workers and takes (C + 4 (r - 1) / r * W / bandwidth) / r seconds: C those of its nodes, W their bytes of
weights. The slowest stage counts; what stages send each other doesn't. All workers are used, and without replication
each stage has one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partita.errors import Infeasible, is_interrupt
from partita.planner.ideals import Ideals, rising
from partita.workload.answer import WorkloadPlan, WorkloadStage
from partita.workload.asked import Asked, Format
from partita.workload.graph import Profiled
from partita.workload.pipedream_file import PipeDreamNode, read_pipedream
from partita.workload.pipedream_sums import extend

# Ideals that one call of compiled code looks at, between two looks at the clock.
CHUNK = 256
# Sums in another order differ by less.
SLACK = 1e-12


class Live(NamedTuple):
    """The ideals that some stages can end with: their numbers, their masks, the fewest and the most workers so far."""

    numbers: NDArray[np.int64]
    masks: NDArray[np.uint64]
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class PipeDreamProblem:
    graph: Profiled[PipeDreamNode]
    workers: int
    bytes_per_second: float
    replication: bool = True

    def stage_seconds(self, compute: float, weights: float, workers: int) -> float:
        """Of a stage's seconds of compute and bytes of weights on so many workers."""
        return (compute + 4 * (workers - 1) / workers * weights / self.bytes_per_second) / workers

    @property
    def bound_seconds(self) -> float:
        """All workers busy with compute all the time, or a whole node on as many workers as it could have."""
        most = self.workers if self.replication else 1
        single = max(
            min(self.stage_seconds(node.seconds, node.parameter_bytes, r) for r in range(1, most + 1))
            for node in self.graph.nodes
        )
        return max(single, sum(node.seconds for node in self.graph.nodes) / self.workers)


def plan_pipedream(problem: PipeDreamProblem, deadline: float = inf) -> WorkloadPlan:
    """The plan whose slowest stage is fastest; the best so far at ``deadline`` (``time.monotonic()``) or Ctrl-C.

    Infeasible where there are fewer nodes than workers and none is replicated.
    """
    nodes, edges = problem.graph.nodes, problem.graph.edges
    if not problem.replication and len(nodes) < problem.workers:
        reason = f"{problem.workers} workers without replication need as many nodes, and there are {len(nodes)}"
        raise Infeasible(f"{reason}; --devices {len(nodes)}, or replication, works", [reason])
    found: WorkloadPlan | None = None
    try:
        for closed in rising(len(nodes), edges):
            if found is None:
                found = _best(problem, closed, inf, inf)
            else:
                found = _best(problem, closed, found.seconds_per_sample * (1 + SLACK), deadline) or found
            if found is not None and found.optimal:
                break
    except BaseException as error:
        if found is None or not (isinstance(error, TimeoutError) or is_interrupt(error)):
            raise
    assert found is not None
    return found


def _best(problem: PipeDreamProblem, closed: Ideals, below: float, deadline: float) -> WorkloadPlan | None:
    """The best plan whose stages are differences of these ideals and take at most ``below`` seconds."""
    nodes, workers = problem.graph.nodes, problem.workers
    closed = closed.by([node.seconds for node in nodes])
    table = closed.sums(np.array([(node.seconds, node.parameter_bytes) for node in nodes]))
    best = np.full((len(closed), workers + 1), inf)
    best[0, 0] = 0
    before = np.full((len(closed), workers + 1), -1, np.int32)
    given = np.zeros((len(closed), workers + 1), np.int32)
    share = np.array([0, *(4 * (r - 1) / r / problem.bytes_per_second for r in range(1, workers + 1))])
    most = workers if problem.replication else 1
    live = Live(np.zeros(len(closed), np.int64), np.zeros_like(closed.masks), np.zeros((len(closed), 2), np.int64))
    count = 0
    for start in range(0, len(closed), CHUNK):
        if time.monotonic() > deadline:
            raise TimeoutError
        stop = min(start + CHUNK, len(closed))
        count = extend(closed.masks, table, share, most, below, best, before, given, *live, count, start, stop)
    if best[-1, workers] == inf:
        return None
    stages: list[WorkloadStage] = []
    ideal, left = len(closed) - 1, workers
    while ideal:
        low, copies = int(before[ideal, left]), int(given[ideal, left])
        stages.append(_stage(problem, closed.between(low, ideal), copies))
        ideal, left = low, left - copies
    stages.reverse()
    seconds = max(stage.seconds for stage in stages)
    bound = problem.bound_seconds
    return WorkloadPlan(
        tuple(stages), seconds if closed.complete else min(bound, seconds), len(closed), closed.complete
    )


def _stage(problem: PipeDreamProblem, members: Sequence[int], copies: int) -> WorkloadStage:
    """A stage, its time summed from its own nodes."""
    nodes = [problem.graph.nodes[node] for node in members]
    weights = sum(node.parameter_bytes for node in nodes)
    seconds = problem.stage_seconds(sum(node.seconds for node in nodes), weights, copies)
    return WorkloadStage(tuple(node.name for node in nodes), copies, 1, seconds, weights)


def _solve(path: str, asked: Asked, deadline: float) -> tuple[WorkloadPlan, int]:
    asked.check("pipedream", ("devices", "bytes_per_second"), (), ("dp=1",))
    assert asked.devices is not None
    assert asked.bytes_per_second is not None
    graph = read_pipedream(path)
    problem = PipeDreamProblem(graph, asked.devices, asked.bytes_per_second, replication="dp=1" not in asked.fix)
    return plan_pipedream(problem, deadline), asked.devices


FORMAT = Format(_solve, "minibatch", "GiB of weights", extend)
