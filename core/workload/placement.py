"""Exact contiguous splits under the cost of dnn-partitioning (Tarnawski et al., NeurIPS 2020, section 5.1).

Every node goes on one of some accelerators or CPUs. A CPU's load is the seconds of its nodes. An accelerator's is that
of its nodes, and of moving outputs: once for each of its nodes that another device reads, and once for each node
elsewhere that it reads. Its bytes must fit. The largest load counts. The forward nodes of a device are contiguous (no
path leaves them and comes back), and backward nodes go with the forward ones of their colour: both directions then cost
the cut of one set of units.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partita.errors import Infeasible, is_interrupt
from partita.planner.ideals import Ideals, packed, rising
from partita.workload.answer import EXACT, WorkloadPlan, WorkloadStage
from partita.workload.asked import Asked, Format
from partita.workload.placement_file import PlacementFile, read_placement
from partita.workload.placement_sums import divided, extend, least_load
from partita.workload.placement_units import Units, units

# Ideals that one call of compiled code looks at, between two looks at the clock.
CHUNK = 128
# So many pairs of ideals are looked at for the bound that one unit gives.
HELD = 1_000_000
# Sums in another order differ by less.
SLACK = 1e-12


@dataclass(frozen=True)
class PlacementProblem:
    file: PlacementFile
    accelerators: int
    memory_bytes: float

    @cached_property
    def units(self) -> Units:
        return units(self.file)

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """[units, 4]: seconds on an accelerator and on a CPU, bytes, nodes that can't be on an accelerator."""
        nodes = self.file.graph.nodes
        rows = np.array(
            [(n.accelerator_seconds or 0, n.cpu_seconds, n.bytes, n.accelerator_seconds is None) for n in nodes]
        )
        return np.array([rows[list(members)].sum(axis=0) for members in self.units.members])

    def taken_over(self, load: float) -> NDArray[np.float64]:
        """[accelerators + 1, CPUs + 1]: the most accelerator seconds that those not used yet take over at that load."""
        fast, slow = self.table[:, 0], self.table[:, 1]
        cpu = 0.0
        left = load
        # On a CPU first what is slowest on an accelerator beside it, the last one in part.
        for unit in np.argsort(-fast / np.maximum(slow, 1e-300), kind="stable"):
            share = 1.0 if slow[unit] <= left else left / slow[unit]
            cpu += share * fast[unit]
            left -= share * slow[unit]
            if share < 1:
                break
        free = np.array([self.accelerators - k for k in range(self.accelerators + 1)])
        idle = np.array([self.file.cpus - c for c in range(self.file.cpus + 1)])
        if load == inf:
            return np.full((len(free), len(idle)), inf)
        return free[:, None] * load + idle[None, :] * cpu

    @property
    def bound_seconds(self) -> float:
        """Less than this isn't enough for all units, or for the one that takes longest where it takes least."""
        fast, slow = self.table[:, 0], self.table[:, 1]
        there = (self.table[:, 3] == 0) & (self.table[:, 2] <= self.memory_bytes) & (self.accelerators > 0)
        fastest = np.where(there, fast, inf)
        low = float(np.minimum(fastest, slow).max()) if self.file.cpus else float(fastest.max())
        high = max(low, float(fast.sum()), float(slow.sum()))
        while high - low > EXACT * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.taken_over(middle)[0, 0] >= fast.sum() else (middle, high)
        return low


def plan_placement(problem: PlacementProblem, deadline: float = inf) -> WorkloadPlan:
    """The contiguous split whose largest load is smallest; the best so far at ``deadline`` or Ctrl-C.

    Infeasible where none fits the memory; TimeoutError where that isn't known yet at ``deadline``.
    """
    count, edges = len(problem.units.members), problem.units.edges
    found: WorkloadPlan | None = None
    try:
        for index, closed in enumerate(rising(count, edges)):
            tables = Tables.of(problem, closed)
            if found is not None and closed.complete:
                bound = min(
                    found.seconds_per_sample, max(found.bound_seconds, _held_seconds(problem, tables, deadline))
                )
                found = replace(found, bound_seconds=bound)
            if found is not None and found.optimal:
                break
            below = inf if found is None else found.seconds_per_sample * (1 + SLACK)
            found = _best(problem, tables, below, deadline if index else inf) or found
    except BaseException as error:
        if found is None or not (isinstance(error, TimeoutError) or is_interrupt(error)):
            raise
    if found is None:
        raise _infeasible(problem)
    return found


def _infeasible(problem: PlacementProblem) -> Infeasible:
    file = problem.file
    devices = f"{problem.accelerators} accelerators of {problem.memory_bytes / 2**30:.4g} GiB and {file.cpus} CPUs"
    whole = float(problem.table[:, 2].sum()) / 2**30
    reason = f"no contiguous split over {devices} fits; all nodes together have {whole:.4g} GiB"
    return Infeasible(f"{file.graph.path}: {reason}; more of either (--devices, --memory-gib) may do", [reason])


class Tables(NamedTuple):
    """One set of ideals as the compiled loops read it, which say what each is."""

    closed: Ideals
    table: NDArray[np.float64]
    starts: NDArray[np.int64]
    listed: NDArray[np.int64]
    sums: NDArray[np.float64]
    groups: NDArray[np.uint64]
    weights: NDArray[np.float64]
    memory: float

    @classmethod
    def of(cls, problem: PlacementProblem, closed: Ideals) -> Tables:
        closed = closed.by(problem.table[:, 0])
        moving = problem.units.moving
        rows = np.zeros((len(moving), len(problem.units.members)), np.bool_)
        for index, group in enumerate(moving):
            rows[index, list(group)] = True
        groups, weights = packed(rows), np.array(list(moving.values()), np.float64)
        starts, listed, sums = divided(closed.masks, groups, weights)
        memory = problem.memory_bytes * (1 + SLACK)
        return cls(closed, closed.sums(problem.table), starts, listed, sums, groups, weights, memory)


def _held_seconds(problem: PlacementProblem, tables: Tables, deadline: float) -> float:
    """A bound: each unit is on some device. Of the units with few ideals before or behind them the least such load."""
    bound = 0.0
    for unit, count in enumerate(tables.closed.having()):
        slow = float(problem.table[unit, 1]) if problem.file.cpus else inf
        if slow > bound and count * (len(tables.closed) - count) <= HELD:
            if time.monotonic() > deadline:
                raise TimeoutError
            least = least_load(unit, tables.closed.masks, *tables[1:]) if problem.accelerators else inf
            bound = max(bound, min(slow, least))
    return bound


def _best(problem: PlacementProblem, tables: Tables, below: float, deadline: float) -> WorkloadPlan | None:
    """The best split into differences of these ideals with loads of at most ``below`` seconds."""
    closed = tables.closed
    best = np.full((len(closed), problem.accelerators + 1, problem.file.cpus + 1), inf)
    best[0, 0, 0] = 0
    before = np.full((*best.shape, 2), -1, np.int32)
    numbers, lows, live = np.zeros(len(closed), np.int64), np.zeros_like(closed.masks), 0
    ahead = problem.taken_over(below)
    for start in range(0, len(closed), CHUNK):
        if time.monotonic() > deadline:
            raise TimeoutError
        live = extend(
            closed.masks, *tables[1:], ahead, below, best, before, numbers, lows, live, start,
            min(start + CHUNK, len(closed)),
        )  # fmt: skip
    if best[-1].min() == inf:
        return None
    k, c = (int(index) for index in np.unravel_index(best[-1].argmin(), best[-1].shape))
    stages, ideal = [], len(closed) - 1
    while ideal:
        low, cpu = (int(number) for number in before[ideal, k, c])
        stages.append(_stage(problem, set(closed.between(low, ideal)), bool(cpu)))
        ideal, k, c = low, k - (not cpu), c - cpu
    stages.reverse()
    seconds = max(stage.seconds for stage in stages)
    bound = seconds if closed.complete else min(problem.bound_seconds, seconds)
    return WorkloadPlan(tuple(stages), bound, len(closed), closed.complete)


def _stage(problem: PlacementProblem, inside: set[int], cpu: bool) -> WorkloadStage:
    """A device's part, its load summed from its own nodes and edges."""
    graph = problem.file.graph
    members = sorted(n for unit in inside for n in problem.units.members[unit])
    own = set(members)
    nodes = [graph.nodes[n] for n in members]
    if cpu:
        seconds = sum(node.cpu_seconds for node in nodes)
    else:
        cut = {low for low, high in graph.edges if (low in own) != (high in own)}
        seconds = sum(node.accelerator_seconds or 0.0 for node in nodes) + sum(
            graph.nodes[n].moving_seconds for n in sorted(cut)
        )
    names = tuple(node.name for node in nodes)
    return WorkloadStage(names, 1, 1, seconds, sum(node.bytes for node in nodes), (), "CPU" if cpu else "accelerator")


def _solve(path: str, asked: Asked, deadline: float) -> tuple[WorkloadPlan, int]:
    asked.check("dnn-partitioning", (), ("devices", "memory_bytes"), ())
    file = read_placement(path)
    accelerators = asked.devices or file.accelerators
    problem = PlacementProblem(file, accelerators, asked.memory_bytes or file.memory_bytes)
    return plan_placement(problem, deadline), accelerators + file.cpus


FORMAT = Format(_solve, "sample", "GiB", extend)
