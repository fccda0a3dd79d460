"""The plans that people make by hand: one kind of parallelism, or two or three of them multiplied.

Of each kind the best is taken: micro-batch, recomputation and where stages are cut are chosen by the same search and
formula as the planner's own plan, so that a kind loses by what it is and not by how it was set up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partita.cost.alike import alike
from partita.plan import Plan
from partita.planner.bound import Bounds
from partita.planner.build import build
from partita.planner.candidates import Candidate
from partita.planner.engine import list_candidates, search
from partita.planner.numbers import Numbers
from partita.planner.words import counted, gib
from partita.problem import TARGETS, Problem


@dataclass(frozen=True)
class Kind:
    """Plans that are made one way."""

    name: str
    takes: Callable[[Candidate], bool]


@dataclass(frozen=True)
class Entry:
    """The best plan of a kind, or why there is none."""

    name: str
    plan: Plan | None
    reason: str = ""


def _alone(zero: int) -> Callable[[Candidate], bool]:
    return lambda c: (c.tp, c.pp) == (1, 1) and c.dp > 1 and c.zero == zero


def _piped(schedule: str, tensor: bool, data: bool) -> Callable[[Candidate], bool]:
    return lambda c: c.pp > 1 and c.schedule == schedule and (c.tp > 1, c.dp > 1) == (tensor, data)


KINDS = (
    Kind("data parallel", _alone(0)),
    *(Kind(f"ZeRO-{zero}", _alone(zero)) for zero in (1, 2, 3)),
    Kind("tensor parallel", lambda c: c.tp > 1 and (c.pp, c.dp) == (1, 1)),
    Kind("tensor × data", lambda c: c.pp == 1 and c.tp > 1 and c.dp > 1 and c.zero == 0),
    Kind("tensor × ZeRO", lambda c: c.pp == 1 and c.tp > 1 and c.dp > 1 and c.zero > 0),
    *(
        Kind(f"{name}{words}", _piped(schedule, tensor, data))
        for schedule, name in (("1f1b", "1F1B"), ("gpipe", "GPipe"))
        for words, tensor, data in (
            ("", False, False), (" × data", False, True), (" × tensor", True, False), (" × tensor × data", True, True),
        )
    ),
)  # fmt: skip


def hand_made(problem: Problem) -> list[Entry]:
    """The best plan of each kind that uses all devices; the problem's held decisions are kept."""
    groups = alike(problem.graph)
    numbers = Numbers(problem, groups)
    bounds = Bounds(numbers)
    listed = list_candidates(problem, groups, problem.cluster.devices)
    return [_best(kind, numbers, bounds, [c for c in listed if kind.takes(c)]) for kind in KINDS]


def _best(kind: Kind, numbers: Numbers, bounds: Bounds, listed: list[Candidate]) -> Entry:
    problem = numbers.problem
    if not listed:
        held = f", {', '.join(f'{name}={value}' for name, value in problem.fix.items())}" if problem.fix else ""
        return Entry(
            kind.name, None,
            f"none for {counted(problem.cluster.devices)}, {len(problem.graph.blocks)} blocks, global batch "
            f"{problem.global_batch}{held} ({TARGETS[problem.target].sentence})",
        )  # fmt: skip
    fitting = [candidate for candidate in listed if bounds.memory(candidate) <= problem.memory_limit]
    found = search(numbers, bounds, fitting)
    if found is None:
        least = min(bounds.memory(candidate) for candidate in listed)
        most = gib(max(least, problem.memory_limit))
        return Entry(
            kind.name, None, f"does not fit: needs {most} a device or more, {gib(problem.memory_limit)} is there"
        )
    plan = build(
        numbers, found.candidate, found.cutting, second=None, optimal=False, bound_seconds=found.bound_seconds,
        considered=len(listed),
    )  # fmt: skip
    return Entry(kind.name, plan)
