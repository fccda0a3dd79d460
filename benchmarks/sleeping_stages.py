"""The step of stages that sleep a set time: on real processes over gloo, against the simulator with these times.

    python benchmarks/sleeping_stages.py

Chains and graphs of stages, a process each. A turn computes its tiny layer and sleeps for the rest of its time, so that
cores don't matter; messages are a few hundred bytes. The ratio is the measured step ÷ the simulated one: what the
runtime and late wake-ups add. Other work on the machine only adds, so the least of the steps stands beside the median.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import machine  # noqa: E402

from tests.ranks.pool import Pool  # noqa: E402
from tests.runtime.dag_models import DAGS  # noqa: E402
from tests.runtime.sleeping import CASES, measured, simulated  # noqa: E402

STEPS = 9
NEAR = 0.03


def main() -> None:
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}\n{STEPS} steps each; float64, 8 samples\n")
    print(f"{'stages':30} {'schedule':9} {'processes':>9} {'simulated':>10} {'median':>9} {'ratio':>7} {'least':>7}")
    pool, near, least = Pool(), 0, 0
    try:
        for name, case in CASES.items():
            dag, wanted = DAGS[case.dag], simulated(case)
            # The ranks wait for each other at the end of a step.
            seconds = pool.run(measured, dag.devices, case, STEPS, timeout=120)[0]
            middle = median(seconds)
            near += abs(middle / wanted - 1) <= NEAR
            least += abs(min(seconds) / wanted - 1) <= NEAR
            figures = f"{wanted:8.3f} s {middle:7.3f} s {middle / wanted:7.4f} {min(seconds) / wanted:7.4f}"
            print(f"{name:30} {dag.schedule:9} {dag.devices:9} {figures}", flush=True)
    finally:
        pool.close()
    print(f"\nwithin {NEAR:.0%} of the simulator: {near} of {len(CASES)} by the median, {least} by the least step")


if __name__ == "__main__":
    main()
