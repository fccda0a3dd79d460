"""Predicted and measured step time of gpt3-tiny on this machine's processes, for several plans.

Each row is one ``partita run``: the prediction and the measured steps are the lines that the recipe prints. The first
steps warm up. Other work on the machine makes steps longer and never shorter, so the least step stands beside the
median, and each row says how busy the machine was before it. The ratio is predicted ÷ median.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import combinations
from os import getloadavg
from statistics import median

from machine import machine

PLANS = (
    (1, ()),
    (1, ("micro_batch=2",)),
    (2, ("dp=2",)),
    (2, ("tp=2",)),
    (2, ("pp=2",)),
    (2, ("pp=2", "micro_batch=2")),
    (4, ("dp=4",)),
    (4, ("dp=2", "tp=2")),
    (4, ("pp=2", "dp=2")),
    (4, ("pp=2", "tp=2")),
    (4, ("pp=4",)),
    (4, ("tp=4",)),
)
STEPS, WARM_UP = 13, 3
LINE = re.compile(r"step (\d+\.\d+) s \(predicted (\d+\.\d+) s\)")


@dataclass(frozen=True)
class Row:
    """Seconds of one plan."""

    name: str
    predicted: float
    median: float
    least: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.median


def measure(processes: int, held: tuple[str, ...]) -> Row:
    """Run one plan and read the recipe's lines."""
    command = [sys.executable, "-m", "partita.cli.main", "run", "gpt3-tiny"]
    command += ["--devices", str(processes), "--steps", str(STEPS), *(word for fix in held for word in ("--fix", fix))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    lines = LINE.findall(done.stdout)
    if done.returncode or len(lines) != STEPS:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    steps = [float(measured) for measured, _ in lines[WARM_UP:]]
    return Row(" ".join(held) or "as planned", float(lines[0][1]), median(steps), min(steps))


def main() -> None:
    print(f"{machine()}\nShared machines are noisy: compare ratios, and the load, before seconds.\n")
    print(f"{'processes':>9}  {'plan':20}  {'predicted':>10}  {'median':>9}  {'least':>9}  {'ratio':>6}  {'load':>5}")
    rows = []
    for processes, held in PLANS:
        load = getloadavg()[0]
        row = measure(processes, held)
        rows.append(row)
        print(
            f"{processes:9}  {row.name:20}  {row.predicted * 1e3:7.0f} ms  {row.median * 1e3:6.0f} ms  "
            f"{row.least * 1e3:6.0f} ms  {row.ratio:6.2f}  {load:5.1f}",
            flush=True,
        )
    within = sum(1 / 1.3 <= row.ratio <= 1.3 for row in rows)
    told = [sorted(pair, key=lambda row: row.predicted) for pair in combinations(rows, 2)]
    told = [(fast, slow) for fast, slow in told if slow.predicted >= 1.3 * fast.predicted]
    right = sum(slow.median > fast.median for fast, slow in told)
    print(f"\nwithin 30 %: {within} of {len(rows)}")
    print(f"pairs whose predictions differ by 30 % or more: {right} of {len(told)} in the right order")


if __name__ == "__main__":
    main()
