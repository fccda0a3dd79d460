"""Predicted and measured step time of gpt3-tiny on this machine's processes, for several plans.

    python benchmarks/cpu_plans.py                 # measures a profile with partita profile first
    python benchmarks/cpu_plans.py --profile FILE  # by a profile of gpt3-tiny that exists
    python benchmarks/cpu_plans.py --preset        # by the preset's figures

Each row is one ``partita run``: the prediction and the measured steps are the lines that the recipe prints. The first
steps warm up. Other work on the machine makes steps longer and never shorter: so the least step stands beside the
median, and a run that was disturbed is repeated. The ratio is predicted ÷ median. What counts is how many predictions
are within 20 %, and whether of two plans that are predicted 15 % apart the faster one is faster.
"""

from __future__ import annotations

import argparse
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
    (4, ("tp=4",)),
)
STEPS, WARM_UP = 15, 3
# A run is repeated once if other work had more than this part of the cores, as long as the whole takes no longer.
QUIET, REPEAT_SECONDS = 0.1, 90.0
# A prediction is near within the first; the second tells two plans apart.
NEAR, APART = 0.2, 0.15
PARTITA = [sys.executable, "-m", "partita.cli.main"]
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
    folder = tempfile.TemporaryDirectory()
    fixed = [word for fix in held for word in ("--fix", fix)]
    command = [*PARTITA, "run", "gpt3-tiny", "--steps", str(STEPS)]
    if profile is None:
        command += ["--devices", str(processes), *fixed]
    else:
        plan = str(Path(folder.name, "plan.json"))
        words = ["--cluster", "cpu", "--devices", str(processes), "--global-batch", "16", "--precision", "fp32"]
        subprocess.run([*PARTITA, "plan", "gpt3-tiny", *words, *fixed, "--profile", profile, "-o", plan],
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
    within = sum(abs(row.predicted / seconds(row) - 1) <= NEAR for row in rows)
    pairs = [sorted(pair, key=lambda row: row.predicted) for pair in combinations(rows, 2)]
    told = [(fast, slow) for fast, slow in pairs if slow.predicted >= (1 + APART) * fast.predicted]
    right = sum(seconds(slow) > seconds(fast) for fast, slow in told)
    return (
        f"{what}: {within} of {len(rows)} within {NEAR:.0%}; of {len(told)} pairs whose predictions differ by "
        f"{APART:.0%} or more {right} in the right order"
    )


def measured_profile(folder: str) -> str:
    """The file that ``partita profile`` writes, of the sizes that the plans need."""
    path, start = str(Path(folder, "gpt3-tiny.profile.json")), time.perf_counter()
    subprocess.run([*PARTITA, "profile", "gpt3-tiny", "--tp", "4", "-o", path],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=900)  # fmt: skip
    print(f"partita profile gpt3-tiny: {time.perf_counter() - start:.0f} s")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--profile", metavar="FILE", help="a profile of gpt3-tiny")
    way.add_argument("--preset", action="store_true", help="no profile: the preset's figures")
    given = parser.parse_args()
    print(f'{machine()}\nThis machine is noisy: other work makes steps longer, by the column "others".\n')
    with tempfile.TemporaryDirectory() as folder:
        table(None if given.preset else given.profile or measured_profile(folder))


def table(profile: str | None) -> None:
    """Every plan's row, and what they show."""
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
