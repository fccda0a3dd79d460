"""Start a recipe's processes on this machine and wait for them: the ranks of a plan, and the one device beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from partita.launch import quiet_environment, run_forked, run_ranks
from partita.plan import Plan, save_plan
from partita.recipes.compare import compare
from partita.recipes.recipe import Files

PLANNED, ONE_DEVICE = "planned.json", "one_device.json"


def shared_words(steps: int, learning_rate: float, seed: int, files: Files) -> list[str]:
    """The options that the ranks and the one device have in common."""
    words = ["--steps", str(steps), "--learning-rate", str(learning_rate), "--seed", str(seed)]
    for option, path in files.items():
        words += [f"--{option}", str(path)] if path else []
    return words


def start_ranks(name: str, plan: Plan, words: Sequence[str], folder: Path, checkpoint: Path | None) -> int:
    """Train the plan, leaving the losses in the folder; the exit status of the ranks."""
    save_plan(plan, folder / "plan.json")
    ranks = max(plan.devices) + 1
    words = [name, "--plan", str(folder / "plan.json"), "--losses", str(folder / PLANNED), *words]
    words += ["--checkpoint", str(checkpoint)] if checkpoint else []
    print(f"\nstarting {ranks} ranks (importing torch and DeepSpeed takes a while)", flush=True)
    return run_forked("partita.recipes.train", words, ranks, quiet_environment())


def start_one_device(name: str, plan: Plan, words: Sequence[str], folder: Path) -> int:
    """Train on one device, print both losses of every step; 0 when they are equal, 1 when not."""
    print("\nthe same steps on one device", flush=True)
    command = [
        sys.executable, "-m", "partita.recipes.one_device", name, "--losses", str(folder / ONE_DEVICE), *words,
        "--global-batch", str(plan.global_batch),
    ]  # fmt: skip
    command += ["--seq", str(plan.seq)] if plan.seq else []
    status = run_ranks(command, 1, quiet_environment())
    if status:
        return status
    planned, one = (json.loads((folder / file).read_text()) for file in (PLANNED, ONE_DEVICE))
    table, equal = compare(planned, one)
    print(f"\n{table}", flush=True)
    return 0 if equal else 1
