"""Problem → Plan by the joint search: all devices if any plan can use them, otherwise as many as one can."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from partita.cluster import Cluster
from partita.cost.alike import alike
from partita.errors import PlanError
from partita.plan import Plan, Search, SharedParameter, Stage, rounded
from partita.planner.fix import check_fix, held_devices, says_all_devices
from partita.planner.joint.build import build, plan_stages, shared_parameters
from partita.planner.joint.engine import TIE, Answer, Engine, Searched
from partita.planner.joint.infeasible import least_share, refuse
from partita.planner.joint.price import Pricing
from partita.planner.joint.table import Chosen
from partita.planner.joint.uniform import uniform_families
from partita.problem import Problem

# How many smaller device counts are tried where no plan can use all devices.
COUNTS = 64


def _programmes(pricing: Pricing, deadline: float) -> Engine:
    # scipy takes its time to load.
    from partita.planner.joint.programmes import Programmes

    return Programmes(pricing, deadline)


# The engines by name: the joint search, and UniAP's programmes solved by HiGHS.
ENGINES: Mapping[str, Callable[[Pricing, float], Engine]] = {"joint": Engine, "miqp": _programmes}


@dataclass(frozen=True)
class Solved:
    """A search that found something, and what is needed to ask it more."""

    engine: Engine
    searched: Searched
    best: Answer

    def plan(self, answer: Answer) -> Plan:
        """The plan of an answer, without its reasons."""
        found = self.searched
        search = Search(self.engine.name, found.optimal, rounded(found.bound_seconds), found.considered, found.pruned)
        return build(self.engine.pricing, answer.family, answer.table, answer.found.stages, search)

    def stages(self, answer: Answer, chosen: Sequence[Chosen]) -> tuple[Stage, ...]:
        """Stages of an answer's table as a plan has them."""
        return plan_stages(self.engine.pricing, answer.family, answer.table, chosen)

    def shared(self, stages: Sequence[Stage]) -> tuple[SharedParameter, ...]:
        """The parameters that blocks of these stages share."""
        return shared_parameters(self.engine.pricing, stages)


def solve(problem: Problem, seconds: float = inf, engine: str = "joint") -> Solved:
    """The best answer under the stated formula (formula.py), within memory and the target's limits.

    After so many ``seconds``, or at Ctrl-C, the best so far, marked as not optimal. ``engine``: one of ``ENGINES``.
    PlanError for held decisions that can't be, Infeasible (with the least changes that would help) where nothing fits.
    """
    groups = alike(problem.graph)
    check_fix(problem, groups)
    whole = Pricing(problem, groups)
    found = searched(whole, seconds, engine)
    if found is not None:
        return found
    raise refuse(whole, list(device_counts(problem)))


def searched(whole: Pricing, seconds: float = inf, engine: str = "joint", *, uniform: bool = False) -> Solved | None:
    """The best answer to a pricing's problem as ``solve`` has it; None where nothing fits. ``uniform``: among stages
    that are all alike."""
    problem, deadline = whole.problem, time.monotonic() + seconds
    for devices in device_counts(problem):
        if least_share(whole, devices) > problem.largest_memory_limit:
            continue
        best: Solved | None = None
        for first in begins(problem.cluster, devices):
            pricing = whole.on(problem, devices, first)
            if uniform:
                asked = Engine(pricing, deadline, uniform_families(pricing))
            else:
                asked = ENGINES[engine](pricing, deadline)
            found = asked.search()
            if found.best is not None and (best is None or found.best.seconds < best.best.seconds * (1 - TIE)):
                best = Solved(asked, found, found.best)
            if not found.optimal:
                if best is not None:
                    bound = min(best.searched.bound_seconds, found.bound_seconds)
                    return replace(best, searched=replace(best.searched, optimal=False, bound_seconds=bound))
                if time.monotonic() > deadline:
                    raise PlanError(f"no plan was found within {seconds:g} seconds; a longer time limit may find one")
                raise KeyboardInterrupt
        if best is not None:
            return best
    return None


def begins(cluster: Cluster, devices: int) -> list[int]:
    """Where so many neighbours may begin: at the first device, and where some are left over at the nodes whose devices
    stand or are otherwise."""
    found: dict[object, int] = {}
    nodes = cluster.node_of
    for first in range(cluster.devices - devices + 1):
        if first == 0 or nodes[first] != nodes[first - 1]:
            span = range(first, first + devices)
            # Nodes from the first one's on, and what each of these is.
            alike = tuple((nodes[at] - nodes[first], cluster.makeup((at,))) for at in span)
            found.setdefault(alike, first)
    return list(found.values())


def device_counts(problem: Problem) -> Iterator[int]:
    """Numbers of devices to try, all of them first; what is held of tp, pp, dp, cp and ep must divide them."""
    product = held_devices(problem.fix)
    if says_all_devices(problem.fix):
        yield product
        return
    largest = problem.cluster.devices // product
    for factor in range(largest, max(0, largest - COUNTS), -1):
        yield factor * product
