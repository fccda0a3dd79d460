"""Problem → Plan by the joint search: all devices if any plan can use them, otherwise as many as one can."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

from partita.cost.alike import Alike, alike
from partita.errors import PlanError
from partita.plan import Plan, Search
from partita.planner.fix import PARALLEL, check_fix
from partita.planner.joint.build import build, rounded
from partita.planner.joint.engine import Answer, Engine, Searched
from partita.planner.joint.price import Pricing
from partita.problem import TARGETS, Problem

# How many smaller device counts are tried where no plan can use all devices.
COUNTS = 64


@dataclass(frozen=True)
class Solved:
    """A search that found something, and what is needed to ask it more."""

    engine: Engine
    searched: Searched
    best: Answer

    def plan(self, answer: Answer, reasons: tuple[str, ...] = ()) -> Plan:
        """The plan of an answer."""
        found = self.searched
        search = Search("joint", found.optimal, rounded(found.bound_seconds), found.considered)
        return build(self.engine.pricing, answer.family, answer.table, answer.found.stages, search, reasons)


def solve(problem: Problem, seconds: float = inf) -> Solved:
    """The best answer under the stated formula (formula.py), within memory and the target's limits.

    After so many ``seconds``, or interrupted (Ctrl-C), the best so far, marked as not optimal. PlanError for held
    decisions that can't be, Infeasible (with the least changes that would help) where nothing fits.
    """
    groups = alike(problem.graph)
    check_fix(problem, groups)
    deadline, some = time.monotonic() + seconds, False
    for devices in device_counts(problem):
        engine = Engine(Pricing(problem, groups, devices), deadline)
        searched = engine.search()
        some = some or searched.considered > 0
        if searched.best is not None:
            return Solved(engine, searched, searched.best)
        if not searched.optimal:
            raise KeyboardInterrupt
    if not some:
        held = ", ".join(f"{name}={value}" for name, value in problem.fix.items())
        raise PlanError(
            f"no plan for {problem.cluster.devices} devices, global batch {problem.global_batch} and "
            f"{len(problem.graph.blocks)} blocks keeps all of {held} ({TARGETS[problem.target].sentence})"
        )
    raise _refused(problem, groups)


def _refused(problem: Problem, groups: Alike) -> Exception:
    raise NotImplementedError


def device_counts(problem: Problem) -> Iterator[int]:
    """Numbers of devices to try, all of them first; what is held of tp, pp, dp, cp and ep must divide them."""
    product = prod(int(problem.fix.get(name, 1)) for name in PARALLEL)
    if {"tp", "pp", "dp"} <= problem.fix.keys():
        yield product
        return
    largest = problem.cluster.devices // product
    for factor in range(largest, max(0, largest - COUNTS), -1):
        yield factor * product
