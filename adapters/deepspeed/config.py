"""What a plan means for DeepSpeed: the one place where it is written down.

===================  ==========================================================================================
plan                 DeepSpeed
===================  ==========================================================================================
samples ÷ dp         ``train_micro_batch_size_per_gpu``
micro_batches        ``gradient_accumulation_steps``
global_batch         ``train_batch_size`` (= micro × accumulation × dp, dp = devices ÷ (pp · tp))
zero                 ``zero_optimization.stage``; with pp > 1 DeepSpeed takes 0 and 1 only
precision            ``bf16`` / ``fp16`` (dynamic loss scale) / neither; with bf16 and ZeRO-1 gradients add up in fp32
recompute            not a key: the stage's code recomputes its blocks
schedule, stages     not keys: the queues that the engine runs
tp                   not a key: Megatron's layers inside the stage, and the groups that the engine's ``mpu`` names
===================  ==========================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from partita.errors import PlanError
from partita.plan import Plan

# Keys that a plan decides. A user who sets one to another value is told, not overruled.
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def deepspeed_config(plan: Plan, user: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The DeepSpeed configuration of a plan, on top of the user's own.

    PlanError where the user's configuration says something else than the plan.
    """
    config: dict[str, Any] = copy.deepcopy(dict(user or {}))
    stage = plan.stages[0]
    zero = stage.strategies[0].zero
    decided: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": stage.samples // stage.dp,
        "gradient_accumulation_steps": stage.micro_batches,
    }
    for key, value in decided.items():
        if config.get(key, value) != value:
            raise PlanError(f'the DeepSpeed configuration has "{key}": {config[key]}, the plan needs {value}; remove one')
        config[key] = value
    section = config.setdefault("zero_optimization", {})
    if section.get("stage", zero) != zero:
        raise PlanError(f'the DeepSpeed configuration has ZeRO stage {section["stage"]}, the plan {zero}; remove one')
    section["stage"] = zero
    for precision in ("bf16", "fp16"):
        if plan.precision == precision:
            config.setdefault(precision, {}).setdefault("enabled", True)
        elif config.get(precision, {}).get("enabled"):
            raise PlanError(f'the DeepSpeed configuration enables {precision}, the plan computes in {plan.precision}')
    if plan.precision == "bf16" and zero == 1:
        config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")
    config.setdefault("steps_per_print", 10**9)
    return config
