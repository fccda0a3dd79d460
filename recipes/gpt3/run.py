"""``partita run gpt3-…``: plan it, start the ranks, and (if asked) prove the losses equal to one device's.

This process imports no torch: it plans, prints, and starts others.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options
from partita.errors import InputError, PlanError
from partita.launch import quiet_environment, run_ranks
from partita.plan import Plan, load_plan, save_plan
from partita.recipes.gpt3.compare import compare
from partita.recipes.gpt3.text import load_text

# What states the problem; a plan that exists has answered it.
PROBLEM = ("devices", "cluster", "global_batch", "seq", "precision", "target", "fix")


def main(name: str, arguments: Sequence[str]) -> int:
    """Parse the recipe's own options and run it; the exit status is 1 where the losses differ."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(help=f"Plan {name}, train it on a text, and compare with one device if asked.")
    def command(
        context: typer.Context,
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
        comparing: Annotated[
            bool, typer.Option("--compare", help="Train on one device too; exit 1 if not equal.")
        ] = False,
    ) -> int:
        _check_numbers(steps, learning_rate, seed)
        if plan is not None:
            _check_unstated(context, plan)
        chosen = (
            load_plan(plan) if plan else _plan(name, cluster, devices, global_batch, seq, precision, target, fix or [])
        )
        _check_plan(name, chosen, str(plan), comparing, checkpoint)
        # The ranks read it again; here a mistake is said once, and before they start.
        load_text(text, chosen.seq or 0)
        with tempfile.TemporaryDirectory(prefix="partita-") as folder:
            common = ["--steps", str(steps), "--learning-rate", str(learning_rate), "--seed", str(seed)]
            common += ["--text", str(text)] if text else []
            status = _train(name, chosen, common, Path(folder), checkpoint)
            if status or not comparing:
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


def _check_numbers(steps: int, learning_rate: float, seed: int) -> None:
    if steps < 1:
        raise InputError(f"--steps {steps}: at least 1 is needed")
    if not 0 < learning_rate < math.inf:
        raise InputError(f"--learning-rate {learning_rate}: a positive, finite number is needed, such as 0.001")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed {seed}: from 0 to {2**32 - 1} work")


def _check_unstated(context: typer.Context, plan: Path) -> None:
    """With a plan nothing may state the problem anew: it would be ignored."""
    given = [name for name in PROBLEM if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        options = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(f"{options} with --plan {plan}: the plan says it already; remove one of the two")


def _check_plan(name: str, plan: Plan, where: str, comparing: bool, checkpoint: Path | None) -> None:
    if plan.model != name:
        raise PlanError(f'{where}: the plan is for "{plan.model}", not for "{name}"')
    if plan.seq is None:
        raise PlanError(f"{where}: the plan has no sequence length; it isn't one of a GPT-3")
    if comparing and plan.precision != "fp32":
        raise InputError(f"--compare with a plan in {plan.precision}: losses are compared in fp32")
    if plan.target != "deepspeed" and plan.precision in ("bf16", "fp16"):
        raise InputError(
            f"--target {plan.target} trains in the precision of the weights, without master copies: {plan.precision} "
            "would lose small updates; use --target deepspeed or --precision fp32"
        )
    if checkpoint is not None and plan.target != "deepspeed":
        raise InputError(
            f"--checkpoint {checkpoint}: checkpoints are DeepSpeed's, the plan is for {plan.target}; plan for deepspeed"
        )
    if checkpoint is not None:
        # Now, and not after hours of training.
        try:
            checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--checkpoint {checkpoint}: can't be made: {error.strerror}") from None


def _train(name: str, plan: Plan, common: list[str], folder: Path, checkpoint: Path | None) -> int:
    """Start the ranks on this machine and wait for them; their exit status."""
    save_plan(plan, folder / "plan.json")
    ranks = max(plan.devices) + 1
    command = [
        sys.executable, "-m", "partita.recipes.gpt3.train", name, "--plan", str(folder / "plan.json"),
        "--losses", str(folder / "planned.json"), *common,
    ]  # fmt: skip
    command += ["--checkpoint", str(checkpoint)] if checkpoint else []
    print(f"\nstarting {ranks} ranks (importing torch and DeepSpeed takes a while)", flush=True)
    return run_ranks(command, ranks, quiet_environment())


def _compare(name: str, plan: Plan, common: list[str], folder: Path) -> int:
    """Train on one device, print both losses of every step; 0 when they are equal, 1 when not."""
    print("\nthe same steps on one device", flush=True)
    command = [
        sys.executable, "-m", "partita.recipes.gpt3.one_device", name, "--losses", str(folder / "one.json"), *common,
        "--global-batch", str(plan.global_batch), "--seq", str(plan.seq),
    ]  # fmt: skip
    status = run_ranks(command, 1, quiet_environment())
    if status:
        return status
    planned, one = (json.loads((folder / file).read_text()) for file in ("planned.json", "one.json"))
    table, equal = compare(planned, one)
    print(f"\n{table}", flush=True)
    return 0 if equal else 1
