"""All families, numbers of micro-batches and schedules at once: the best plan of a problem, proven by bounds.

Each (family, c) has a bound that no answer goes under (``floor``). In their order each is searched as though no
micro-batch waited for another's return (``search.best``, relaxed); where even that is no better than the best so far,
no schedule is. Stages that are cheap to search come first: their best answer prunes the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from math import inf

import numpy as np

from partita.planner.joint.floor import Floor, floor, sorts
from partita.planner.joint.lent import owners, tied_blocks
from partita.planner.joint.price import Pricing, Schedule
from partita.planner.joint.rows import base
from partita.planner.joint.search import STOPS, Found, TimeOut, best, is_stop
from partita.planner.joint.space import Family
from partita.planner.joint.table import JointTable
from partita.planner.joint.tidy import tidied

# Times that differ by less are equal: sums in another order.
TIE = 1e-9
# Further micro-batches that may go ahead over each boundary.
DEPTHS = (0, 1, 2)


@dataclass(frozen=True)
class Answer:
    """The best stages of one table; ``depths``: of each stage, where they have their own."""

    family: Family
    table: JointTable
    found: Found
    depths: tuple[int, ...] | None = None

    @property
    def seconds(self) -> float:
        return self.found.seconds

    @property
    def shapes(self) -> tuple[object, ...]:
        """What tells arrangements apart: the shapes of the stages, one after another."""
        return tuple(
            (shape.dp, shape.tp, shape.manner.name)
            for shape in (self.family.shapes[s.shape] for s in self.found.stages)
        )


@dataclass(frozen=True)
class Searched:
    """``considered`` (families × numbers of micro-batches × schedules), of which ``pruned`` by bounds alone.

    ``bound_seconds``: no answer takes less; the best answer's own time where the search came to its end.
    """

    best: Answer | None
    bound_seconds: float
    optimal: bool
    considered: int
    pruned: int


class Stopped(TimeOut):
    """The time was over, or Ctrl-C came, within a table whose best so far is ``answer``."""

    def __init__(self, answer: Answer):
        super().__init__()
        self.answer = answer


@dataclass(frozen=True)
class Task:
    """One family and number of micro-batches; ``mixed``: with the stages that mix forms."""

    family: Family
    micro_batches: int
    bound: float
    mixed: bool

    @property
    def easy(self) -> tuple[bool, bool]:
        """What is searched in no time comes first."""
        return self.family.stages is None, self.mixed


class Engine:
    """The search of one problem, on its pricing; or of some ``families`` and ``schedules`` (with depths) alone."""

    name = "joint"

    def __init__(
        self, pricing: Pricing, deadline: float = inf, families: Sequence[Family] | None = None,
        schedules: Sequence[tuple[Schedule, int]] | None = None,
    ):  # fmt: skip
        self.pricing, self.deadline = pricing, deadline
        self.families = pricing.families if families is None else families
        fixed = pricing.problem.fix.get("schedule")
        self.limit = float(pricing.problem.largest_memory_limit)
        graph = pricing.problem.graph
        # Blocks of one number have the same prices, whatever tp and form the tied ones are held to.
        tied = tied_blocks(graph) + 2 * owners(graph)
        self._sorts = sorts(4 * np.array(pricing.groups.kinds) + tied)
        self._shares: dict[Family, tuple[np.ndarray, np.ndarray]] = {}
        # Other frameworks' own pipelines have 1F1B's usual warm-up.
        depths = DEPTHS if pricing.problem.target == "partita" else DEPTHS[:1]
        kinds: Sequence[tuple[Schedule, int]] = schedules or (*(("1f1b", depth) for depth in depths), ("gpipe", 0))
        # On a chain kfkb is 1f1b.
        fixed = "1f1b" if fixed == "kfkb" else fixed
        self.schedules = [kind for kind in kinds if fixed in (None, kind[0])]

    def search(self, below: float = inf) -> Searched:
        """The best answer that takes less than ``below`` seconds. Interrupted, or at its deadline, the best so far with
        the bound of what is left."""
        tasks = self.tasks
        found: Answer | None = None
        pruned = 0
        # In the order of bounds; a task's second bound, with regard to memory, is found where its first one is due.
        queue = [(task.easy, task.bound, number, False) for number, task in enumerate(tasks)]
        heapify(queue)
        try:
            while queue:
                easy, bound, number, tightened = queue[0]
                if bound >= below * (1 - TIE):
                    pruned += 1
                elif time.monotonic() > self.deadline:
                    raise TimeOut
                elif not tightened:
                    task = tasks[number]
                    within = self._floor(task.family, task.micro_batches, task.mixed).within(self.limit)
                    heapreplace(queue, (easy, max(bound, within), number, True))
                    continue
                else:
                    answer = self.solve(tasks[number], below)
                    if answer is not None:
                        found, below = answer, answer.seconds
                heappop(queue)
        except STOPS as stop:
            if not is_stop(stop):
                raise
            if isinstance(stop, Stopped):
                found, below = stop.answer, stop.answer.seconds
            left = min(bound for _, bound, _, _ in queue)
            return Searched(found, min(left, below), False, self._count(tasks), pruned)
        return Searched(found, below, True, self._count(tasks), pruned)

    def others(self, than: Answer, within: float, most: int) -> Iterator[Answer]:
        """Other answers that take up to ``within`` times as long, the best of their family and number of micro-batches:
        up to ``most`` are looked for, where bounds are the least. Each arrangement comes once."""
        looked, seen = 0, {(than.table.micro_batches, than.shapes)}
        for task in self.by_bound:
            if task.mixed or task.bound >= than.seconds * within or looked == most:
                continue
            looked += 1
            try:
                answer = self.solve(task, than.seconds * within)
            except STOPS as stop:
                if not is_stop(stop):
                    raise
                return
            if answer is not None and (key := (answer.table.micro_batches, answer.shapes)) not in seen:
                seen.add(key)
                yield answer

    def solve(self, task: Task, below: float) -> Answer | None:
        """The best answer of a task that takes less than ``below``."""
        family, count = task.family, task.micro_batches
        schedules = self.schedules if family.most_stages > 1 else self.schedules[:1]
        first = self._table(task, *schedules[0])
        bases = base(first.prices, first.used)
        bound = best(first, below, bases, relaxed=True, deadline=self.deadline)
        if bound is None:
            return None
        found: Answer | None = None
        for schedule, depth in schedules:
            # With so few micro-batches nobody waits for a return.
            if depth and count <= family.most_stages:
                continue
            table = self._table(task, schedule, depth)
            answer = best(table, below, bases, deadline=self.deadline)
            if answer is not None:
                answer = replace(answer, stages=tidied(table, answer.stages))
                found, below = Answer(family, table, answer), answer.seconds
            if below <= bound.seconds * (1 + TIE):
                break
        return found

    @cached_property
    def tasks(self) -> list[Task]:
        """All tasks, those first that are searched in no time, and of these the ones with the least bounds."""
        found = []
        for family in self.families:
            mixed = any(shape.mixed for shape in family.shapes)
            for count in self.pricing.micro_batches(family):
                for kind in (False, True) if mixed else (False,):
                    bound = self._floor(family, count, kind).bound()
                    if bound < inf:
                        found.append(Task(family, count, bound, kind))
        return sorted(found, key=lambda task: (task.easy, task.bound))

    @property
    def by_bound(self) -> list[Task]:
        """All tasks, those with the least bounds first."""
        return sorted(self.tasks, key=lambda task: task.bound)

    def _floor(self, family: Family, micro_batches: int, mixed: bool) -> Floor:
        """The bounds of a task."""
        if family not in self._shares:
            shapes = self.pricing.ways(family).shapes
            self._shares[family] = (
                np.array([shape.devices / (family.unit * family.units) for shape in shapes]),
                np.array([shape.mixed for shape in shapes]),
            )
        share, mixes = self._shares[family]
        prices = self.pricing.prices(family, micro_batches)
        return floor(prices, self._sorts, share, mixed | ~mixes, family.stages, micro_batches)

    def _table(self, task: Task, schedule: Schedule, depth: int) -> JointTable:
        of = self.pricing.table if task.mixed else self.pricing.unmixed
        return of(task.family, task.micro_batches, schedule, depth)

    def _count(self, tasks: Sequence[Task]) -> int:
        return sum(len(self.schedules) if task.family.most_stages > 1 else 1 for task in tasks)
