"""A linear programme with whole numbers, column by column and row by row, and HiGHS that solves it.

HiGHS (highspy) is the only free solver that proves optima of such programmes in minutes, needs no licence and installs
as one wheel. Nothing here knows what the columns mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import numpy as np

# The columns of a sum and their factors.
Sum = dict[int, float]
# HiGHS takes a row as kept, and a number as whole, where it is off by no more; 1e-10 is its least.
TOLERANCE = 1e-9


def plus(*sums: Mapping[int, float], times: float = 1.0) -> Sum:
    """The sum of sums, all of them ``times`` a factor."""
    found: Sum = {}
    for each in sums:
        for column, factor in each.items():
            found[column] = found.get(column, 0.0) + factor * times
    return found


def total(columns: Iterable[int]) -> Sum:
    """Columns added up."""
    return plus(*({column: 1.0} for column in columns))


@dataclass(frozen=True)
class Solution:
    """What HiGHS found: ``values`` of the columns, None where it has none; no solution is below ``bound``.

    ``ended`` is whether it came to an end, at the optimum or at the proof that nothing is below the given bound.
    """

    values: np.ndarray | None
    bound: float
    ended: bool
    interrupted: bool


class Programme:
    """Columns, rows and a cost that is minimised."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[float, Sum, float]] = []
        self.cost: Sum = {}

    def column(self, upper: float = inf) -> int:
        """A number from 0 to ``upper``."""
        self.upper.append(upper)
        self.whole.append(False)
        return len(self.upper) - 1

    def choice(self) -> int:
        """A number that is 0 or 1."""
        self.upper.append(1.0)
        self.whole.append(True)
        return len(self.upper) - 1

    def at_most(self, sums: Mapping[int, float], right: float) -> None:
        self.rows.append((-inf, dict(sums), right))

    def at_least(self, sums: Mapping[int, float], right: float) -> None:
        self.rows.append((right, dict(sums), inf))

    def equal(self, sums: Mapping[int, float], right: float) -> None:
        self.rows.append((right, dict(sums), right))

    def solve(self, below: float = inf, seconds: float = inf, relaxed: bool = False) -> Solution:
        """The least cost under ``below``, in about so many seconds; ``relaxed``: with fractions allowed.

        Ctrl-C ends HiGHS and is told in the answer.
        """
        from highspy import HighsLp, HighsModelStatus, HighsVarType, MatrixFormat

        lp = HighsLp()
        lp.num_col_, lp.num_row_ = len(self.upper), len(self.rows)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self.upper)), np.array(self.upper)
        lp.col_cost_ = np.array([self.cost.get(column, 0.0) for column in range(len(self.upper))])
        if not relaxed:
            lp.integrality_ = [HighsVarType.kInteger if whole else HighsVarType.kContinuous for whole in self.whole]
        lp.row_lower_ = np.array([low for low, _, _ in self.rows])
        lp.row_upper_ = np.array([high for _, _, high in self.rows])
        lp.a_matrix_.format_ = MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(sums) for _, sums, _ in self.rows)])
        lp.a_matrix_.index_ = np.array([column for _, sums, _ in self.rows for column in sums], np.int32)
        lp.a_matrix_.value_ = np.array([factor for _, sums, _ in self.rows for factor in sums.values()])

        solver = _silent()
        for option, value in {
            "threads": 1, "time_limit": max(seconds, 0.0), "objective_bound": below, "mip_rel_gap": 0.0,
            "mip_abs_gap": TOLERANCE, "mip_feasibility_tolerance": TOLERANCE, "primal_feasibility_tolerance": TOLERANCE,
        }.items():  # fmt: skip
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        interrupted = _run(solver, monotonic() + seconds)

        status, info = solver.getModelStatus(), solver.getInfo()
        nothing = status in (HighsModelStatus.kInfeasible, HighsModelStatus.kObjectiveBound)
        ended = nothing or status == HighsModelStatus.kOptimal
        has = not nothing and info.primal_solution_status == 2
        values = np.array(solver.getSolution().col_value) if has else None
        if nothing or (ended and info.objective_function_value >= below):
            return Solution(None, below, True, interrupted)
        if relaxed:
            return Solution(values, info.objective_function_value if ended else 0.0, ended, interrupted)
        return Solution(values, max(0.0, info.mip_dual_bound), ended, interrupted)


def _silent() -> Any:
    """HiGHS that prints nothing."""
    from highspy import Highs

    class Silent(Highs):
        def enableCallbacks(self) -> None:
            # The constructor calls this, and this prints who HiGHS is.
            self.silent()
            super().enableCallbacks()

    return Silent()


def _run(solver: Any, until: float) -> bool:
    """Run HiGHS on a thread of its own, so that Ctrl-C reaches it; whether it did."""
    solver.HandleUserInterrupt = True
    solver.startSolve()
    interrupted, ended = False, False
    while not ended:
        try:
            ended, _ = solver.wait(0.2)
        except KeyboardInterrupt:
            interrupted = True
            solver.cancelSolve()
    return interrupted
