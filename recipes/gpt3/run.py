"""``partita run gpt3-…``: plan it, start the ranks, and (if asked) prove the losses equal to one device's.

This process imports no torch: it plans, prints, and starts others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options
from partita.errors import InputError, PlanError
from partita.plan import Plan, load_plan, save_plan

# Adam divides rounding noise by itself: losses of two right programs drift apart by about this much in fp32.
TOLERANCE = 1e-4


def main(name: str, arguments: Sequence[str]) -> int:
    """Parse the recipe's own options and run it; the exit status is 1 where the losses differ."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(help=f"Plan {name}, train it on a text, and compare with one device if asked.")
    def command(
        devices: Annotated[int, typer.Option(help="Processes on this machine.")] = 4,
        cluster: Annotated[str, typer.Option(help="What to plan for; cpu means processes on this machine.")] = "cpu",
        plan: Annotated[Path | None, typer.Option(help="Run this plan instead of making one.")] = None,
        global_batch: Annotated[int, typer.Option(help="Samples in a step.")] = 16,
        seq: options.Seq = None,
        steps: Annotated[int, typer.Option(help="Training steps.")] = 20,
        text: Annotated[
            Path | None, typer.Option(help="A file to learn from. Default: Python's documentation.")
        ] = None,
        precision: options.Precision = "fp32",
        target: options.Target = "deepspeed",
        fix: options.Fix = None,
        learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 1e-3,
        seed: Annotated[int, typer.Option(help="Of weights and samples.")] = 0,
        checkpoint: Annotated[Path | None, typer.Option(help="Save DeepSpeed's checkpoint here at the end.")] = None,
        compare: Annotated[
            bool, typer.Option("--compare", help="Train on one device too; exit 1 if not equal.")
        ] = False,
    ) -> int:
        if steps < 1:
            raise InputError(f"--steps {steps}: at least 1 is needed")
        if text is not None and not text.is_file():
            raise InputError(f"{text}: no such file")
        if compare and precision != "fp32":
            raise InputError(f"--compare with --precision {precision}: losses are compared in fp32")
        chosen = (
            load_plan(plan) if plan else _plan(name, cluster, devices, global_batch, seq, precision, target, fix or [])
        )
        if chosen.model != name:
            raise PlanError(f'{plan}: the plan is for "{chosen.model}", not for "{name}"')
        with tempfile.TemporaryDirectory(prefix="partita-") as folder:
            common = ["--steps", str(steps), "--learning-rate", str(learning_rate), "--seed", str(seed)]
            common += ["--text", str(text)] if text else []
            status = _train(name, chosen, common, Path(folder), checkpoint)
            if status or not compare:
                return status
            return _compare(name, chosen, common, Path(folder))

    return int(app(args=list(arguments), prog_name=f"partita run {name}", standalone_mode=False) or 0)


def _plan(
    name: str, cluster: str, devices: int, global_batch: int, seq: int | None, precision: str, target: str,
    fix: Sequence[str],
) -> Plan:  # fmt: skip
    from partita.cli.plan import search
    from partita.cli.show import plan_text

    stated = options.problem(
        name, cluster, devices if cluster == "cpu" else None, global_batch, seq, precision, "adam", None, target, fix
    )
    found, seconds = search(stated)
    print(plan_text(found, seconds), flush=True)
    return found


def _train(name: str, plan: Plan, common: list[str], folder: Path, checkpoint: Path | None) -> int:
    """Start the ranks on this machine and wait for them; their exit status."""
    save_plan(plan, folder / "plan.json")
    ranks = max(plan.devices) + 1
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks),
        "-m", "partita.recipes.gpt3.train", name, "--plan", str(folder / "plan.json"),
        "--losses", str(folder / "planned.json"), *common,
    ]  # fmt: skip
    command += ["--checkpoint", str(checkpoint)] if checkpoint else []
    print(f"\nstarting {ranks} ranks (importing torch and DeepSpeed takes a while)", flush=True)
    return subprocess.run(command, env=_environment(), check=False).returncode


def _compare(name: str, plan: Plan, common: list[str], folder: Path) -> int:
    """Train on one device, print both losses of every step; 0 when they are equal, 1 when not."""
    print("\nthe same steps on one device", flush=True)
    command = [
        sys.executable, "-m", "partita.recipes.gpt3.one_device", name, "--losses", str(folder / "one.json"), *common,
        "--global-batch", str(plan.global_batch), "--seq", str(plan.seq),
    ]  # fmt: skip
    status = subprocess.run(command, env=_environment(), check=False).returncode
    if status:
        return status
    planned, one = (json.loads((folder / file).read_text()) for file in ("planned.json", "one.json"))
    print(f"\n{'step':>4}  {'planned':>10}  {'one device':>10}  {'difference':>10}")
    worst = 0.0
    for step, (ours, theirs) in enumerate(zip(planned, one, strict=True), start=1):
        worst = max(worst, abs(ours - theirs))
        print(f"{step:4d}  {ours:10.6f}  {theirs:10.6f}  {abs(ours - theirs):10.1e}")
    # A NaN is never within the tolerance.
    equal = worst <= TOLERANCE
    print(f"\nlargest difference {worst:.1e} (tolerance {TOLERANCE:.0e})\nequal: {str(equal).lower()}", flush=True)
    return 0 if equal else 1


def _environment() -> dict[str, str]:
    """Quiet children: one thread a rank unless told otherwise, no start-up chatter of the frameworks."""
    quiet = {
        "OMP_NUM_THREADS": "1",
        "DEEPSPEED_LOG_LEVEL": "error",
        "DS_ACCELERATOR": "cpu",
        "PYTHONWARNINGS": "ignore",
    }
    if Path("/dev/nvidia0").exists():
        quiet.pop("DS_ACCELERATOR")
    return {**quiet, **os.environ}
