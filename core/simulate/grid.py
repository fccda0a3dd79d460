"""The plans that people make by hand: one kind of parallelism, or two or three of them multiplied.

Of each kind the best is taken: micro-batch, recomputation and where stages are cut are chosen by the same search and
formula as the planner's own plan, so that a kind loses by what it is and not by how it was set up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partita.cost.alike import alike
from partita.plan import Plan, Search, rounded
from partita.planner.joint.build import build
from partita.planner.joint.engine import Engine
from partita.planner.joint.price import Pricing, Schedule
from partita.planner.joint.smallest import smallest
from partita.planner.joint.space import Family, Shape
from partita.planner.joint.uniform import uniform_families
from partita.planner.words import counted, gib
from partita.problem import TARGETS, Problem


@dataclass(frozen=True)
class Kind:
    """Plans that are made one way: ``takes`` numbers of stages and their shape. Without stages no schedule matters."""

    name: str
    takes: Callable[[int, Shape], bool]
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Entry:
    """The best plan of a kind, or why there is none."""

    name: str
    plan: Plan | None
    reason: str = ""


def _alone(zero: int) -> Callable[[int, Shape], bool]:
    return lambda pp, s: (s.tp, pp) == (1, 1) and s.dp > 1 and s.zero == zero


def _piped(tensor: bool, data: bool) -> Callable[[int, Shape], bool]:
    return lambda pp, s: pp > 1 and (s.tp > 1, s.dp > 1) == (tensor, data)


SCHEDULES: tuple[tuple[Schedule, str], ...] = ("1f1b", "1F1B"), ("gpipe", "GPipe")
KINDS = (
    Kind("data parallel", _alone(0)),
    *(Kind(f"ZeRO-{zero}", _alone(zero)) for zero in (1, 2, 3)),
    Kind("tensor parallel", lambda pp, s: s.tp > 1 and (pp, s.dp) == (1, 1)),
    Kind("tensor × data", lambda pp, s: pp == 1 and s.tp > 1 and s.dp > 1 and s.zero == 0),
    Kind("tensor × ZeRO", lambda pp, s: pp == 1 and s.tp > 1 and s.dp > 1 and s.zero > 0),
    *(
        Kind(f"{name}{words}", _piped(tensor, data), schedule)
        for schedule, name in SCHEDULES
        for words, tensor, data in (
            ("", False, False), (" × data", False, True), (" × tensor", True, False), (" × tensor × data", True, True),
        )
    ),
)  # fmt: skip


def hand_made(problem: Problem) -> list[Entry]:
    """The best plan of each kind that uses all devices; the problem's held decisions are kept."""
    pricing, held = Pricing(problem, alike(problem.graph)), problem.fix.get("schedule")
    ways = uniform_families(pricing)
    return [
        _best(kind, pricing, [f for f in ways if held in (None, kind.schedule or held) and _takes(kind, f)])
        for kind in KINDS
    ]


def _takes(kind: Kind, family: Family) -> bool:
    return kind.takes(family.most_stages, family.shapes[0])


def _best(kind: Kind, pricing: Pricing, ways: Sequence[Family]) -> Entry:
    problem = pricing.problem
    schedule: Schedule = kind.schedule or ("gpipe" if problem.fix.get("schedule") == "gpipe" else "1f1b")
    counts = {way: pricing.micro_batches(way) for way in ways}
    if not any(counts.values()):
        held = f", {', '.join(f'{name}={value}' for name, value in problem.fix.items())}" if problem.fix else ""
        return Entry(
            kind.name, None,
            f"none for {counted(problem.cluster.devices)}, {len(problem.graph.blocks)} blocks, global batch "
            f"{problem.global_batch}{held} ({TARGETS[problem.target].sentence})",
        )  # fmt: skip
    found = Engine(pricing, families=ways, schedules=((schedule, 0),)).search()
    if found.best is None:
        if not found.optimal:
            raise KeyboardInterrupt
        # The smallest micro-batches hold the least.
        tables = [pricing.table(way, max(each), schedule) for way, each in counts.items() if each]
        least = min(found.bytes for found in map(smallest, tables) if found is not None)
        # Counted on the largest device.
        there = problem.largest_memory_limit
        return Entry(kind.name, None, f"does not fit: needs {gib(least)} a device or more, {gib(there)} is there")
    best, search = found.best, Search("joint", False, rounded(found.bound_seconds), found.considered)
    return Entry(kind.name, build(pricing, best.family, best.table, best.found.stages, search))
