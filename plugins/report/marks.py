"""What is drawn in a lane: a mark for each task, those too narrow to be seen drawn together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partita.cli.show import duration
from partita.plan import Plan
from partita.planner.words import gib
from partita.simulate import Simulation
from partita.spacetime.program import Task

PHASES = ("forward", "backward", "weight")
# Stages of one device are told apart by this many shades, which then begin again.
SHADES = 4


@dataclass(frozen=True)
class Mark:
    """``count`` tasks from ``start`` to ``end`` seconds; ``look`` are its classes of style, ``words`` stand in it."""

    start: float
    end: float
    look: str
    words: str
    hint: str
    count: int = 1


def shades(plan: Plan) -> list[int]:
    """The shade of each stage: the first that no earlier stage on one of its devices has."""
    found: list[int] = []
    for stage in plan.stages:
        mine = set(stage.devices)
        taken = {shade for shade, other in zip(found, plan.stages, strict=False) if not mine.isdisjoint(other.devices)}
        found.append(next(shade for shade in range(len(found) + 1) if shade not in taken))
    return [shade % SHADES for shade in found]


def own(simulation: Simulation, plan: Plan, device: int, shade: Sequence[int]) -> list[Mark]:
    """The device's turns, reductions and updates, in order of time."""
    found = []
    for task, start, end in simulation.intervals(device):
        if task.transfer is not None:
            # A message; a join takes no time.
            continue
        inside = share(simulation, task.stage, task.kind)
        look = task.kind
        if task.kind in PHASES:
            look += f" s{shade[task.stage]}"
        if 0 < inside < 1:
            look += f" {foot(task.stage, task.kind)}"
        collectives = f", collectives {inside:.0%} of it" if inside else ""
        micro = "" if task.micro is None else f" {task.micro}"
        hint = f"{task.kind}{micro} of {plan.stages[task.stage].name}: {_when(start, end)}{collectives}"
        found.append(Mark(start, end, look, micro.strip(), hint))
    return sorted(found, key=lambda mark: mark.start)


def messages(simulation: Simulation, device: int, kind: str) -> list[Mark]:
    """What the device sends, or receives (``kind``), in order of time."""
    found = []
    for task, start, end in simulation.intervals(device):
        if task.kind == kind:
            assert task.transfer is not None
            size = gib(simulation.costs.size_bytes(task.transfer))
            hint = f"{kind}s {_what(task)}, {size}, {'to' if kind == 'send' else 'from'} {task.peer}: "
            found.append(Mark(start, end, kind, "", hint + _when(start, end)))
    return sorted(found, key=lambda mark: mark.start)


def together(marks: Iterable[Mark], least_seconds: float) -> list[Mark]:
    """The marks, runs of those that are shorter than that, and no further from each other, as one.

    A mark of several counts its tasks and has the look of the first one; ``several`` where they differ.
    """

    def short(mark: Mark) -> bool:
        return mark.end - mark.start < least_seconds

    found: list[list[Mark]] = []
    for mark in marks:
        last = found[-1][-1] if found else None
        if last and short(mark) and short(last) and mark.start - last.end < least_seconds:
            found[-1].append(mark)
        else:
            found.append([mark])
    return [run[0] if len(run) == 1 else _one(run) for run in found]


def share(simulation: Simulation, stage: int, kind: str) -> float:
    """The part of a task's seconds that its collectives take."""
    whole = simulation.costs.seconds[stage, kind]
    return simulation.costs.collective_seconds[stage, kind] / whole if whole else 0.0


def foot(stage: int, kind: str) -> str:
    """The name of the fill whose foot shows the collectives of a task."""
    return f"foot-{kind}-{stage}"


def _one(run: Sequence[Mark]) -> Mark:
    kinds = {mark.look for mark in run}
    start, end = run[0].start, max(mark.end for mark in run)
    hint = f"{len(run)} tasks, the first: {run[0].hint}; all: {_when(start, end)}"
    return Mark(start, end, run[0].look if len(kinds) == 1 else "several", "", hint, len(run))


def _what(task: Task) -> str:
    names = task.reads if task.kind == "send" else task.writes
    return names[0]


def _when(start: float, end: float) -> str:
    return f"{duration(end - start)} from {duration(start)}"
