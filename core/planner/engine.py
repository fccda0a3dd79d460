"""The chain engine: the best candidate with the best cuts, proven by bounds; then the next best and the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from partita.cost.alike import Alike, alike, tp_sizes
from partita.errors import PlanError
from partita.plan import Plan
from partita.planner.bound import SAFETY, Bounds
from partita.planner.build import build
from partita.planner.candidates import Candidate, candidates
from partita.planner.chain import Cutting, best_cuts
from partita.planner.fix import check_fix
from partita.planner.infeasible import refuse
from partita.planner.numbers import Numbers
from partita.problem import TARGETS, Problem

# Times that differ by less are equal: sums in another order.
TIE = 1e-9
# How many smaller device counts are tried where no plan can use all devices.
COUNTS = 64


@dataclass(frozen=True)
class Found:
    """The best of some candidates; ``bound_seconds`` is what no candidate goes under."""

    candidate: Candidate
    cutting: Cutting
    bound_seconds: float
    optimal: bool


def plan(problem: Problem) -> Plan:
    """The plan with the least step time under the stated formula (formula.py), within memory and the target's limits.

    All devices are used where any plan can; otherwise the largest number that one can, and the idle ones are named.
    Raises PlanError for held decisions that can't be, Infeasible (with the least change that would help) where nothing
    fits. Interrupted (Ctrl-C), returns the best so far marked as not optimal.
    """
    groups = alike(problem.graph)
    check_fix(problem, groups)
    numbers = Numbers(problem, groups)
    bounds = Bounds(numbers)
    considered: list[Candidate] = []
    for devices in device_counts(problem):
        listed = list_candidates(problem, groups, devices)
        considered += listed
        fitting = [candidate for candidate in listed if bounds.memory(candidate) <= problem.memory_limit]
        best = search(numbers, bounds, fitting)
        if best is None:
            continue
        others = [candidate for candidate in fitting if candidate.mesh != best.candidate.mesh]
        second = _second(numbers, bounds, others) if best.optimal else None
        # Devices that differ are taken for the weakest: another order of unlike stages may be faster.
        alike_devices = len(problem.cluster.different_kinds) == 1
        return build(
            numbers, best.candidate, best.cutting,
            second=(second.candidate, second.cutting.seconds) if second else None,
            optimal=best.optimal and alike_devices, bound_seconds=best.bound_seconds if alike_devices else 0.0,
            considered=len(considered),
        )  # fmt: skip
    if not considered:
        held = ", ".join(f"{name}={value}" for name, value in problem.fix.items())
        raise PlanError(
            f"no plan for {problem.cluster.devices} devices, global batch {problem.global_batch} and "
            f"{len(problem.graph.blocks)} blocks keeps all of {held} ({TARGETS[problem.target].sentence})"
        )
    raise refuse(numbers, bounds, considered)


def _second(numbers: Numbers, bounds: Bounds, others: Sequence[Candidate]) -> Found | None:
    """The best of the other arrangements, for the reasons: an interrupt here leaves the plan as it is."""
    try:
        return search(numbers, bounds, others)
    except KeyboardInterrupt:
        return None


def device_counts(problem: Problem) -> Iterator[int]:
    """Numbers of devices to try, all of them first; what tp, pp and dp hold must divide them."""
    held = {name: int(problem.fix.get(name, 1)) for name in ("tp", "pp", "dp")}
    product = held["tp"] * held["pp"] * held["dp"]
    if held.keys() <= problem.fix.keys():
        yield product
        return
    largest = problem.cluster.devices // product
    for factor in range(largest, max(0, largest - COUNTS), -1):
        yield factor * product


def list_candidates(problem: Problem, groups: Alike, devices: int) -> list[Candidate]:
    """All candidates that use exactly that many devices."""
    tps = tp_sizes(problem.graph, groups, devices)
    target = TARGETS[problem.target]
    return list(candidates(devices, len(problem.graph.blocks), problem.global_batch, tps, target, problem.fix))


def search(numbers: Numbers, bounds: Bounds, listed: Sequence[Candidate]) -> Found | None:
    """The best of the candidates, in the order of their bounds until no bound is under the best time found."""
    ordered = sorted((bounds.seconds(candidate), candidate) for candidate in listed)
    limit = float(numbers.problem.memory_limit)
    best: tuple[Candidate, Cutting] | None = None
    seconds = inf
    try:
        for bound, candidate in ordered:
            if bound >= seconds * SAFETY:
                break
            cutting = best_cuts(numbers.table(candidate, limit), below=seconds)
            if cutting is not None:
                best, seconds = (candidate, cutting), cutting.seconds
    except KeyboardInterrupt:
        if best is None:
            raise
        return Found(*best, bound_seconds=bound, optimal=False)
    if best is None:
        return None
    return Found(*_leaner(numbers, listed, *best, limit), bound_seconds=seconds, optimal=True)


def _leaner(
    numbers: Numbers, listed: Sequence[Candidate], candidate: Candidate, cutting: Cutting, limit: float
) -> tuple[Candidate, Cutting]:
    """The same arrangement by 1F1B where that is as fast as GPipe: it holds fewer micro-batches."""
    twin = replace(candidate, schedule="1f1b")
    if candidate.schedule != "gpipe" or twin not in listed:
        return candidate, cutting
    same = best_cuts(numbers.table(twin, limit), below=cutting.seconds * (1 + TIE))
    return (twin, same) if same is not None else (candidate, cutting)
