"""Exact plans under Piper's cost (Tarnawski et al., NeurIPS 2021, section 4).

Stages are ordered, without an edge back; each has d copies of t devices. A stage takes (P + E / bandwidth) / d +
4 (d - 1) / d * W / N / bandwidth seconds of one of N micro-batches: P the seconds of its nodes, W their bytes of
weights, E twice the bytes of the edges over its borders. A device keeps y = ceil(s / d) micro-batches in flight, s the
copies of that stage and all later ones. The slowest stage is made as fast as the devices and their memory allow.

For a time T the fewest devices for what isn't in an ideal follow, from the end backwards, by the number of copies so
far: y depends on that alone. T is then found by bisection.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt

from partita.errors import Infeasible, InputError, is_interrupt, listed
from partita.planner.ideals import rising
from partita.workload.answer import EXACT, WorkloadPlan, WorkloadStage
from partita.workload.asked import Asked, Format
from partita.workload.piper_file import read_piper
from partita.workload.piper_search import PiperProblem, Search
from partita.workload.piper_sums import extend

GIB = 2**30
# Where the best so far is nearer to the bound than this share, what is just below it is tried first.
NEAR = 0.01


def plan_piper(problem: PiperProblem, deadline: float = inf) -> WorkloadPlan:
    """The plan whose slowest stage is fastest; the best so far at ``deadline`` (``time.monotonic()``) or Ctrl-C.

    Infeasible where no plan fits the memory, with a memory that would do; TimeoutError where that isn't known yet.
    """
    graph, memory = problem.file.graph, problem.file.memory_bytes
    first: Search | None = None
    bisection = Bisection(deadline, memory)
    try:
        for closed in rising(len(graph.nodes), graph.edges):
            search = Search(problem, closed)
            first = first or search
            bisection.narrow(search)
    except BaseException as error:
        if bisection.best is None or not (isinstance(error, TimeoutError) or is_interrupt(error)):
            raise
    assert first is not None
    if bisection.best is None:
        raise _infeasible(first)
    bound = bisection.high if bisection.high <= bisection.low * (1 + EXACT) else bisection.low
    return WorkloadPlan(bisection.best, bound, bisection.sets, bisection.complete)


class Bisection:
    """``best``: stages of ``high`` seconds; no plan takes less than ``low``. ``sets``: the ideals of the last search;
    ``complete``: they were all, and it came to its end."""

    def __init__(self, deadline: float, memory: float):
        self.low, self.high = 0.0, inf
        self.best: tuple[WorkloadStage, ...] | None = None
        self.deadline, self.memory = deadline, memory
        self.sets, self.complete = 0, False

    def narrow(self, search: Search) -> None:
        """Find the best plan there is in a search."""
        # The first search has few ideals: it is always given the time to find some plan.
        deadline = self.deadline if self.sets else inf
        self.sets = len(search.closed)
        if self.best is None and not self._ask(search, inf, deadline):
            return
        self.low = max(self.low, search.least_seconds)
        low, just_below = self.low, False
        while self.high > low * (1 + EXACT):
            just_below = self.high < low * (1 + NEAR) and not just_below
            below = self.high * (1 - EXACT / 2)
            if not just_below:
                below = min(below, sqrt(low * self.high) if low else self.high / 2)
            if not self._ask(search, below, self.deadline):
                low = below
                if search.closed.complete and not search.given_up:
                    self.low = low
        self.complete = search.closed.complete

    def _ask(self, search: Search, below: float, deadline: float) -> bool:
        found = search.plan(below, self.memory, deadline)
        if found is not None:
            self.high, self.best = max(stage.seconds for stage in found), found
        return found is not None


def _infeasible(search: Search) -> Infeasible:
    """What would fit: the least memory in hundredths of a GiB, if any does."""
    file = search.problem.file
    low = int(file.memory_bytes / GIB * 100)
    high = low + 1
    while search.plan(inf, high / 100 * GIB) is None:
        low, high = high, 2 * high
        if high > 1e9:
            reason = f"no stages can be made for {file.devices} devices from the degrees that the nodes have"
            return Infeasible(f"{file.graph.path}: {reason}, whatever the memory; more devices may do", [reason])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if search.plan(inf, middle / 100 * GIB) is not None else (middle, high)
    reason = f"no plan on {file.devices} devices fits {file.memory_bytes / GIB:.4g} GiB a device"
    return Infeasible(f"{file.graph.path}: {reason}; {high / 100:g} GiB would do (--memory-gib)", [reason])


def _solve(path: str, asked: Asked, deadline: float) -> tuple[WorkloadPlan, int]:
    asked.check("piper", (), ("devices", "memory_bytes", "micro_batches", "bytes_per_second"), HELD)
    file = read_piper(path)
    file = replace(
        file, devices=asked.devices or file.devices, memory_bytes=asked.memory_bytes or file.memory_bytes,
        micro_batches=asked.micro_batches or file.micro_batches,
        bytes_per_second=asked.bytes_per_second or file.bytes_per_second,
    )  # fmt: skip
    problem = PiperProblem(file, *(decision not in asked.fix for decision in HELD))
    for node in file.graph.nodes:
        if not set(node.degrees) & set(problem.degrees):
            raise InputError(
                f"{path}: node {node.name} has no way of running on {listed(problem.degrees or [1])} of {file.devices} "
                f"devices; it has tensor-parallel degrees {listed(node.degrees)}"
            )
    return plan_piper(problem, deadline), file.devices


HELD = ("dp=1", "tp=1", "recompute=none")
FORMAT = Format(_solve, "micro-batch", "GiB a device", extend)
