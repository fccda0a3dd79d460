"""Seconds of planning by model and devices, and of the two command lines that must feel instant.

Planning is what happens after the model's graph exists. Where nothing fits, the row times the refusal, which finds the
least memory that would. Processes are timed whole, start of Python included: the least of five.
"""

from __future__ import annotations

import subprocess
import sys
import time

from machine import machine

from partita.cli.options import problem
from partita.errors import Infeasible
from partita.hooks import planned

MODELS = ("gpt3-125m", "gpt3-1.3b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b")
CLUSTERS = ("1x8xa100-80gb", "4x8xa100-80gb", "32x8xa100-80gb", "128x8xa100-80gb")
PROCESSES = (
    ("--help",),
    ("plan", "gpt3-6.7b", "--cluster", "4x8xa100-80gb", "--global-batch", "512", "--json"),
)
BATCH = 1024


def planning() -> None:
    """One row a model and cluster."""
    print(f"{'model':10}  {'devices':>7}  {'graph':>8}  {'planning':>9}  {'candidates':>10}  plan")
    for model in MODELS:
        for cluster in CLUSTERS:
            start = time.perf_counter()
            stated = problem(model, cluster, None, BATCH, None, "bf16", "adam", None, "deepspeed", ())
            middle = time.perf_counter()
            try:
                found = planned(stated)
            except Infeasible:
                considered, what = "", "nothing fits"
            else:
                stage = found.stages[0]
                considered = str(found.search.considered)
                what = f"pp={len(found.stages)} tp={stage.tp} dp={stage.dp} micro-batches={stage.micro_batches}"
            end = time.perf_counter()
            print(
                f"{model:10}  {stated.cluster.devices:7,}  {(middle - start) * 1e3:5.0f} ms  "
                f"{(end - middle) * 1e3:6.0f} ms  {considered:>10}  {what}",
                flush=True,
            )


def processes() -> None:
    """Whole processes."""
    print("\nwhole processes, the least of five")
    for arguments in PROCESSES:
        took = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "partita.cli.main", *arguments], check=True, capture_output=True)
            took.append(time.perf_counter() - start)
        print(f"  {min(took):5.2f} s  partita {' '.join(arguments)}")


def main() -> None:
    print(f"{machine()}\n\nglobal batch {BATCH:,}, bf16, Adam, DeepSpeed")
    planning()
    processes()


if __name__ == "__main__":
    main()
