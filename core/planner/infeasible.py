"""Where nothing fits: the least memory that would, what binds, and how many more devices would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, inf

from partita.cost.alike import tp_sizes
from partita.cost.state import state_bytes
from partita.errors import Infeasible
from partita.planner.bound import Bounds
from partita.planner.build import stage_memory
from partita.planner.candidates import Candidate, candidates
from partita.planner.chain import least_memory
from partita.planner.numbers import Numbers
from partita.planner.words import counted, describe, gib
from partita.problem import TARGETS, Problem

# Larger clusters that are tried: so many steps of one device (or of one node).
STEPS = 64

WORDS = {
    "parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer states",
    "activations": "activations of the micro-batches in flight", "temporary": "temporary tensors of the backward pass",
    "framework": "the framework's own memory",
}  # fmt: skip


def refuse(numbers: Numbers, bounds: Bounds, listed: Sequence[Candidate]) -> Infeasible:
    """The error to raise when none of the candidates fits the limit."""
    problem = numbers.problem
    limit, cluster = problem.memory_limit, problem.cluster
    needed, candidate, cuts = _least(numbers, bounds, listed)
    memories = [stage_memory(numbers, candidate, stage, i, j) for stage, (i, j) in enumerate(pairwise(cuts))]
    stage = max(range(len(memories)), key=lambda s: memories[s].total)
    blocks = problem.graph.blocks[cuts[stage] : cuts[stage + 1]]
    largest = max(memories[stage].items().items(), key=lambda item: item[1])
    smallest = (
        f"nothing fits {gib(limit)} a device on {counted(cluster.devices)} ({cluster.device_names}): the least is "
        f"{gib(needed)} a device ({needed:,.0f} bytes)"
    )
    span = f'"{blocks[0].name}"' if len(blocks) == 1 else f'"{blocks[0].name}" to "{blocks[-1].name}"'
    reasons = [
        f"With {gib(needed)} a device a plan exists: {describe(candidate)}.",
        f"Stage {stage} binds (blocks {span}), and in it {WORDS[largest[0]]}: {gib(largest[1])} of {gib(needed)}.",
        _state_sentence(numbers),
        _unlike_sentence(problem),
        _devices_sentence(numbers),
    ]
    reasons = [reason for reason in reasons if reason]
    return Infeasible(f"{smallest}. " + " ".join(reasons), reasons)


def _least(numbers: Numbers, bounds: Bounds, listed: Sequence[Candidate]) -> tuple[float, Candidate, tuple[int, ...]]:
    """The smallest limit at which a plan exists, the candidate and the cuts that need no more."""
    best: tuple[float, Candidate, tuple[int, ...]] | None = None
    for bound, candidate in sorted((bounds.memory(candidate), candidate) for candidate in listed):
        if best is not None and bound >= best[0]:
            break
        found = least_memory(numbers.table(candidate, inf))
        assert found is not None, "candidates have no more stages than blocks"
        if best is None or found[0] < best[0]:
            best = (found[0], candidate, found[1])
    assert best is not None
    return best


def _state_sentence(numbers: Numbers) -> str:
    problem = numbers.problem
    state = _state(numbers)
    each = problem.memory_limit - numbers.device.framework_bytes
    text = (
        f"The model's state is {gib(state)}; a perfect split over {counted(problem.cluster.devices)} would be "
        f"{gib(state / problem.cluster.devices)} each"
    )
    if each > 0 and state / problem.cluster.devices > each:
        text += f", and {counted(ceil(state / each))} would hold it if it could be split evenly"
    return text + "."


def _unlike_sentence(problem: Problem) -> str:
    """What was not looked at where devices differ."""
    if len(problem.cluster.different_devices()) == 1:
        return ""
    smallest = "" if problem.memory_bytes is not None else f", {gib(problem.memory_limit)}"
    return (
        f"Each device was taken to have what the smallest has{smallest}: whether heavier stages fit the larger devices "
        "was not looked at."
    )


def _state(numbers: Numbers) -> float:
    """Bytes of the whole model's state, on one device."""
    per = state_bytes(numbers.problem.precision, numbers.problem.optimizer, 0, 1)
    return float(numbers.trained(1).sum()) * per.total + float(numbers.frozen(1).sum()) * per.parameters


def _devices_sentence(numbers: Numbers) -> str:
    """The smallest larger cluster on which a plan exists, if one is near."""
    problem = numbers.problem
    cluster = problem.cluster
    step = max(cluster.nodes) if len(cluster.nodes) > 1 else 1
    first = cluster.devices // step * step + step
    framework = numbers.device.framework_bytes
    room = problem.memory_limit - framework
    if room <= 0:
        return f"No number of such devices would do: the framework alone takes {gib(framework)}."
    first = max(first, ceil(_state(numbers) / room / step) * step)
    unlike, last = len(cluster.different_devices()) > 1, cluster.kinds[-1].device.name
    for devices in range(first, first + STEPS * step, step):
        larger = Numbers(replace(problem, cluster=cluster.resized(devices)), numbers.groups, numbers.costs_by_tp)
        bounds = Bounds(larger)
        tps = tp_sizes(problem.graph, numbers.groups, devices)
        found = candidates(
            devices, len(problem.graph.blocks), problem.global_batch, tps, TARGETS[problem.target], problem.fix
        )
        # The smallest micro-batch and 1F1B hold the least, whatever the rest is.
        small = [c for c in found if _smallest(c, problem.fix) and bounds.memory(c) <= problem.memory_limit]
        for candidate in sorted(small):
            fits = least_memory(larger.table(candidate, inf))
            if fits is not None and fits[0] <= problem.memory_limit:
                more = f" (the further ones {last})" if unlike else ""
                return f"{devices} such devices{more} would do: {describe(candidate)}."
    return f"No number of such devices up to {first + (STEPS - 1) * step} would do with what is held."


def _smallest(candidate: Candidate, fix: Mapping[str, int | str]) -> bool:
    micro = candidate.micro == 1 or "micro_batch" in fix or "micro_batches" in fix
    return micro and (candidate.schedule == "1f1b" or "schedule" in fix)
