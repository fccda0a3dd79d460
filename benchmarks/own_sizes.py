"""What stages with numbers of micro-batches of their own win: a tower of many small kernels beside a large one.

The model is that of ``tests/planner/branches/unequal.py``: so many linear layers of one token and width 256, beside
four pairs of 128 tokens and width 2,048, and a head that reads both. It is planned for three stages on three V100, 32
samples, in fp16 with Adam; steps are simulated. *alike* is the best plan with one number of micro-batches in all
stages, each number held in turn; *own* the plan with nothing held of them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import machine  # noqa: E402

from partita.cluster import parse_cluster  # noqa: E402
from partita.problem import Problem  # noqa: E402
from partita.ranking import planned  # noqa: E402
from tests.planner.branches.unequal import unequal  # noqa: E402

KERNELS = (20, 30, 40, 50, 60, 80, 120)
COUNTS = (1, 2, 4, 8, 16)


def row(kernels: int) -> str:
    """One line of the table."""
    fix = {"pp": 3, "dp": 1, "tp": 1}
    asked = Problem(unequal(kernels), parse_cluster("1x3xv100-16gb"), 32, "fp16", target="partita", fix=fix)
    held = [planned(replace(asked, fix={**fix, "micro_batches": count})) for count in COUNTS]
    best, own = min(held, key=lambda plan: plan.predicted.step_seconds), planned(asked)
    alike, seconds = best.predicted.step_seconds, own.predicted.step_seconds
    counts = ", ".join(str(stage.micro_batches) for stage in own.stages)
    return (
        f"{kernels:7}  {alike * 1e3:8.2f}  {best.stages[0].micro_batches:13}  {seconds * 1e3:8.2f}  {counts:>13}  "
        f"{alike / seconds:5.3f}"
    )


def main() -> None:
    """The table."""
    print(f"{machine()}\n{__doc__}\nkernels  alike ms  micro-batches    own ms  micro-batches  times")
    for kernels in KERNELS:
        print(row(kernels), flush=True)


if __name__ == "__main__":
    main()
