"""Predicted and measured step time of gpt3-tiny on this machine's processes, for several plans.

Each row is one ``partita run``: the prediction and the measured steps are the lines that the recipe prints. The first
steps warm up. Other work on the machine makes steps longer and never shorter: so the least step stands beside the
median, and a run that was disturbed is repeated. The ratio is predicted ÷ median.

    python benchmarks/predicted_step.py                 # by the preset's figures
    python benchmarks/predicted_step.py FILE            # by a profile of gpt3-tiny that partita profile wrote
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from machine import machine

PLANS = (
    (1, ()),
    (2, ("dp=2",)),
    (2, ("tp=2",)),
    (2, ("pp=2",)),
    (4, ("dp=4",)),
    (4, ("dp=2", "tp=2")),
    (4, ("pp=2", "dp=2")),
    (4, ("pp=2", "tp=2")),
    (4, ("pp=4",)),
)
STEPS, WARM_UP = 15, 3
# A run is repeated once if other work had more than this part of the cores, as long as the whole takes no longer.
QUIET, REPEAT_SECONDS = 0.1, 90.0
LINE = re.compile(r"step (\d+\.\d+) s \(predicted (\d+\.\d+) s\)")


@dataclass(frozen=True)
class Row:
    """Seconds of one plan; ``others`` is the part of the machine's cores that other work had meanwhile."""

    predicted: float
    median: float
    least: float
    others: float


def busy_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine since it started, and of this process's children that have ended."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    # user, nice, system, idle, waiting for a disk, interrupts …: idle and waiting are not busy.
    busy = (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return busy, children.ru_utime + children.ru_stime


def run(processes: int, held: tuple[str, ...], profile: str | None) -> Row:
    """Run one plan and read the recipe's lines."""
    partita, folder = [sys.executable, "-m", "partita.cli.main"], tempfile.TemporaryDirectory()
    fixed = [word for fix in held for word in ("--fix", fix)]
    command = [*partita, "run", "gpt3-tiny", "--steps", str(STEPS)]
    if profile is None:
        command += ["--devices", str(processes), *fixed]
    else:
        plan = str(Path(folder.name, "plan.json"))
        words = ["--cluster", "cpu", "--devices", str(processes), "--global-batch", "16", "--precision", "fp32"]
        subprocess.run([*partita, "plan", "gpt3-tiny", *words, *fixed, "--profile", profile, "-o", plan],
                       stdout=subprocess.DEVNULL, check=True, timeout=300)  # fmt: skip
        command += ["--plan", plan]
    start, (busy, ours) = time.perf_counter(), busy_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    wall, (busy_after, ours_after) = time.perf_counter() - start, busy_seconds()
    folder.cleanup()
    lines = LINE.findall(done.stdout)
    if done.returncode or len(lines) != STEPS:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    steps = [float(measured) for measured, _ in lines[WARM_UP:]]
    others = ((busy_after - busy) - (ours_after - ours)) / (wall * (os.cpu_count() or 1))
    return Row(float(lines[0][1]), median(steps), min(steps), max(0.0, others))


def quietest(processes: int, held: tuple[str, ...], repeat: bool, profile: str | None) -> Row:
    """The run that other work disturbed less; the first if it was left alone, or if none is to be repeated."""
    first = run(processes, held, profile)
    if first.others <= QUIET or not repeat:
        return first
    return min(first, run(processes, held, profile), key=lambda row: row.others)


def summary(rows: list[Row], seconds: Callable[[Row], float], what: str) -> str:
    """How many predictions are within 30 %, and how many pairs that they tell apart come in the right order."""
    within = sum(1 / 1.3 <= row.predicted / seconds(row) <= 1.3 for row in rows)
    pairs = [sorted(pair, key=lambda row: row.predicted) for pair in combinations(rows, 2)]
    told = [(fast, slow) for fast, slow in pairs if slow.predicted >= 1.3 * fast.predicted]
    right = sum(seconds(slow) > seconds(fast) for fast, slow in told)
    return (
        f"{what}: {within} of {len(rows)} within 30 %; of {len(told)} pairs whose predictions differ by 30 % or more "
        f"{right} in the right order"
    )


def main() -> None:
    profile = sys.argv[1] if len(sys.argv) > 1 else None
    print(f"{machine()}\nOther work on the machine makes steps longer: see the last column before the ratio.\n")
    print(f"{'processes':>9}  {'plan':12}  {'predicted':>10}  {'median':>9}  {'least':>9}  {'ratio':>6}  {'others':>6}")
    rows: list[Row] = []
    start = time.perf_counter()
    for processes, held in PLANS:
        row = quietest(processes, held, time.perf_counter() - start < REPEAT_SECONDS, profile)
        rows.append(row)
        print(
            f"{processes:9}  {' '.join(held) or 'as planned':12}  {row.predicted * 1e3:7.0f} ms  "
            f"{row.median * 1e3:6.0f} ms  {row.least * 1e3:6.0f} ms  {row.predicted / row.median:6.2f}  "
            f"{row.others:6.0%}",
            flush=True,
        )
    print("\n" + summary(rows, lambda row: row.median, "median"))
    print(summary(rows, lambda row: row.least, "least"))


if __name__ == "__main__":
    main()
