"""A plan as ``TrainingArguments`` of transformers, with DeepSpeed's configuration inside.

The Trainer's own settings know data parallelism, ZeRO and recomputation. Stages and cut layers they can't say.
"""

from __future__ import annotations

from typing import Any

from partita.plan import Plan
from partita.plugins.export.deepspeed import KEEP, configuration, partly
from partita.plugins.export.exported import Exported, Inexpressible
from partita.plugins.export.uniform import Uniform, uniform

NAME = "the Trainer"
OPTIMIZERS = {"adam": "adamw_torch", "sgd": "sgd"}


def export(plan: Plan) -> Exported:
    """``training_arguments.json``."""
    numbers = replicas(plan, NAME)
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": numbers.micro_batch,
        "gradient_accumulation_steps": numbers.micro_batches,
        "optim": OPTIMIZERS[plan.optimizer],
    }
    if numbers.recompute == "full":
        # Its newer name, activation_checkpointing, is not in all versions that Partita works with.
        arguments["gradient_checkpointing"] = True
    if plan.precision in ("bf16", "fp16"):
        arguments[plan.precision] = True
    # The Trainer clips by max_grad_norm, and through DeepSpeed only if its configuration asks for the value.
    arguments["deepspeed"] = configuration(plan, numbers, gradient_clipping="auto")
    notes = ["Learning rate, number of steps and output folder are yours to add."]
    return Exported(NAME, {"training_arguments.json": arguments}, len(plan.devices), tuple(notes))


def replicas(plan: Plan, framework: str) -> Uniform:
    """The numbers of a plan whose devices all hold the whole model or its ZeRO part; Inexpressible for any other."""
    numbers, reasons = uniform(plan, framework)
    cut = [f"{name}={size}" for name, size in (("pp", numbers.pp), ("tp", numbers.tp)) if size > 1]
    if cut:
        only = ", ".join(f"--fix {name.split('=')[0]}=1" for name in cut)
        reasons.append(f"It has {' and '.join(cut)}, for which {framework} has no setting; plan with {only}. {KEEP}")
    reasons += partly(plan, framework)
    if reasons:
        raise Inexpressible(framework, reasons)
    return numbers
