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

Every other key is the user's and passes as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from partita.errors import PlanError
from partita.plan import Plan


def deepspeed_config(
    plan: Plan, user: Mapping[str, Any] | None = None, *, calls: int = 0, stage: int = 0
) -> dict[str, Any]:
    """The DeepSpeed configuration of a plan's stage, on top of the user's own, which is left as it was.

    ``calls``: a loop calls the model so often in a step, each time with the plan's global batch; what DeepSpeed takes
    for a micro-batch is then a copy's part of a call. 0: a step is the plan's own.

    PlanError where the user's configuration says something else than the plan.
    """
    config: dict[str, Any] = copy.deepcopy(dict(user or {}))
    own = plan.stages[stage]
    zero = own.strategies[0].zero
    decided = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": own.samples // own.dp,
        "gradient_accumulation_steps": own.micro_batches,
    }
    if calls:
        decided = {
            "train_batch_size": plan.global_batch * calls,
            "train_micro_batch_size_per_gpu": plan.global_batch // own.dp,
            "gradient_accumulation_steps": calls,
        }
    for key, value in decided.items():
        _decide(config, key, value, key)
    partition = _section(config, "zero_optimization")
    _decide(partition, "stage", zero, "zero_optimization.stage")
    if zero == 3:
        # It would replace torch's linear function in the whole process, for the models that are captured later too;
        # a stage's code calls operators and wouldn't notice.
        partition.setdefault("memory_efficient_linear", False)
    for precision in ("bf16", "fp16"):
        if plan.precision == precision or precision in config:
            enabled = _section(config, precision)
            if plan.precision != precision and enabled.get("enabled"):
                raise PlanError(
                    f"the DeepSpeed configuration enables {precision}, the plan computes in {plan.precision}; "
                    f"remove it, or plan for precision {precision}"
                )
            _decide(enabled, "enabled", plan.precision == precision, f"{precision}.enabled")
    if plan.precision == "bf16" and zero == 1:
        _section(config, "data_types").setdefault("grad_accum_dtype", "fp32")
    pieces = _section(config, "tensor_parallel").get("autotp_size", 0) if "tensor_parallel" in config else 0
    if pieces > 1:
        raise PlanError(
            f'the DeepSpeed configuration has "tensor_parallel.autotp_size": {pieces}: it would cut layers that '
            f"the plan cuts already (tp={own.tp}); remove it"
        )
    config.setdefault("steps_per_print", 10**9)
    return config


def _decide(section: dict[str, Any], key: str, value: Any, name: str) -> None:
    """Set what the plan decides."""
    if section.setdefault(key, value) != value:
        raise PlanError(
            f'the DeepSpeed configuration has "{name}": {section[key]}, the plan needs {value}; remove the key'
        )


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The object under a key, made if there is none."""
    found = config.setdefault(name, {})
    if not isinstance(found, dict):
        raise PlanError(f'the DeepSpeed configuration has "{name}": {found!r}, an object is needed')
    return found
