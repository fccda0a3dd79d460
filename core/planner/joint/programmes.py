"""The second engine on all tables of a problem: each is UniAP's programme (``miqp``)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from partita.planner.joint import miqp
from partita.planner.joint.engine import Answer, Engine, Stopped, Task
from partita.planner.joint.formula import terms
from partita.planner.joint.search import Found, TimeOut


class Programmes(Engine):
    """As ``Engine``, with HiGHS in place of the search. It takes minutes where that takes a second: for small problems,
    and to confirm the search."""

    name = "miqp"

    def others(self, than: Answer, within: float, most: int) -> Iterator[Answer]:
        """None: each would take as long as the best one."""
        return iter(())

    def solve(self, task: Task, below: float) -> Answer | None:
        """The best answer of a task that takes less than ``below``; Stopped with the best so far."""
        found: Answer | None = None
        for schedule, depth in self.schedules if task.family.most_stages > 1 else self.schedules[:1]:
            if depth and task.micro_batches <= task.family.most_stages:
                continue
            table = self._table(task, schedule, depth)
            solved = miqp.best(table, below=below, limit_seconds=self.deadline - time.monotonic())
            if solved.stages:
                here = Found(solved.stages, solved.seconds, terms(table, solved.stages), 0)
                found, below = Answer(task.family, table, here), solved.seconds
            if solved.interrupted or not solved.optimal:
                if found is not None:
                    raise Stopped(found)
                raise KeyboardInterrupt if solved.interrupted else TimeOut
        return found
