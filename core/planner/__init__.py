"""Problem → Plan: stages, their shapes and the options of every block chosen together, proven (``joint``)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from partita.planner.fix import parse_fix

if TYPE_CHECKING:
    from partita.plan import Plan
    from partita.problem import Problem

__all__ = ["parse_fix", "plan"]


def plan(problem: Problem, seconds: float = inf) -> Plan:
    """The plan with the least step time under the formula (``joint/formula.py``), with its reasons.

    ``seconds`` and errors are those of ``joint.plan.solve``. Which of the best is fastest when it is simulated is for
    ``partita.ranking`` to say.
    """
    # What the search compiles takes its time to load; whoever reads decisions alone needs none of it.
    from dataclasses import replace

    from partita.planner.joint.plan import solve
    from partita.planner.reasons import reasons

    solved = solve(problem, seconds)
    found = solved.plan(solved.best)
    return replace(found, reasons=tuple(reasons(solved, solved.best, found)))
