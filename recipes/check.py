"""What can't be meant, said before anything starts: numbers out of range, options that a plan answers, other plans."""

from __future__ import annotations

import math
from pathlib import Path

import typer

from partita.errors import InputError, PlanError
from partita.plan import Plan
from partita.reach import beyond

# What states the problem; a plan that exists has answered it.
PROBLEM = ("devices", "cluster", "global_batch", "seq", "precision", "target", "fix", "plan_function")


def check_numbers(steps: int, learning_rate: float, seed: int) -> None:
    """InputError for a number that no training can have."""
    if steps < 1:
        raise InputError(f"--steps {steps}: at least 1 is needed")
    if not 0 < learning_rate < math.inf:
        raise InputError(f"--learning-rate {learning_rate}: a positive, finite number is needed, such as 0.001")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed {seed}: from 0 to {2**32 - 1} work")


def check_unstated(context: typer.Context, plan: Path) -> None:
    """InputError where the problem is stated beside a plan: it would be ignored."""
    given = [name for name in PROBLEM if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        options = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(f"{options} with --plan {plan}: the plan says it already; remove one of the two")


def check_model(name: str, plan: Plan, where: str) -> None:
    """PlanError for a plan of another model."""
    if plan.model != name:
        raise PlanError(f'{where}: the plan is for "{plan.model}", not for "{name}"')


def check_target(plan: Plan) -> None:
    """PlanError for a plan that the framework which trains its target can't run."""
    if plan.target != "partita" and (reasons := beyond(plan)):
        raise PlanError(f"target {plan.target} can't train this plan: {'; '.join(reasons)}; target partita can")


def check_wishes(plan: Plan, comparing: bool, checkpoint: Path | None, resume: Path | None) -> None:
    """InputError for what this plan can't be trained with. Makes the checkpoint's folder."""
    if comparing and resume is not None:
        raise InputError(f"--compare with --resume {resume}: the one device begins with fresh weights")
    if resume is not None and not resume.is_dir():
        raise InputError(f"--resume {resume}: no such folder")
    if comparing and plan.precision != "fp32":
        raise InputError(f"--compare with a plan in {plan.precision}: losses are compared in fp32")
    if plan.target != "deepspeed" and plan.precision in ("bf16", "fp16"):
        raise InputError(
            f"--target {plan.target} trains in the precision of the weights, without master copies: {plan.precision} "
            "would lose small updates; use --target deepspeed or --precision fp32"
        )
    if checkpoint is not None:
        # Now, and not after hours of training.
        try:
            checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--checkpoint {checkpoint}: can't be made: {error.strerror}") from None
        if plan.target != "deepspeed" and any(checkpoint.iterdir()) and not (checkpoint / ".metadata").exists():
            raise InputError(f"--checkpoint {checkpoint}: has files that are no checkpoint; give another folder")
