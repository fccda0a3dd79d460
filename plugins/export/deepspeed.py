"""A plan as a DeepSpeed configuration, and with a pipeline the boundaries of its stages.

The configuration is the one that the DeepSpeed adapter itself starts from. A JSON file can't say where a
``PipelineModule`` is cut, so that stands in a file of its own, which the user's module reads.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from partita.plan import Plan
from partita.plugins.export.deepspeed_config import deepspeed_config
from partita.plugins.export.exported import Exported, Inexpressible
from partita.plugins.export.uniform import Uniform, uniform

NAME = "DeepSpeed"
# The way out of most refusals: Partita's own engine, inside DeepSpeed's.
KEEP = 'Or keep the plan, and name its file in the DeepSpeed configuration: "partita": {"plan": FILE}.'


def export(plan: Plan) -> Exported:
    """``deepspeed.json``, and ``stages.json`` where there are several stages."""
    numbers, reasons = uniform(plan, NAME)
    if numbers.pp > 1 and numbers.zero > 1:
        reasons.append(
            f"DeepSpeed's pipeline takes the ZeRO stages 0 and 1, not {numbers.zero}; plan with --fix zero=1 or with "
            "--fix pp=1."
        )
    if numbers.tp > 1:
        # AutoTP is no way out: it cuts by rules of its own, and the batch arithmetic counts its ranks as copies.
        reasons.append(
            f"It has tp={numbers.tp}, and DeepSpeed's configuration can't say how layers are cut; --to megatron can, "
            f"or plan with --fix tp=1. {KEEP}"
        )
    reasons += partly(plan, NAME)
    if reasons:
        raise Inexpressible(NAME, reasons)
    files: dict[str, Any] = {"deepspeed.json": configuration(plan, numbers)}
    if numbers.pp > 1:
        files["stages.json"] = boundaries(plan, numbers)
    return Exported(NAME, files, len(plan.devices), tuple(_notes(plan, numbers)))


def partly(plan: Plan, framework: str) -> list[str]:
    """The reason why a framework that computes all blocks again or none can't take the plan."""
    every = {strategy.recompute for stage in plan.stages for strategy in stage.strategies}
    if "selective" in every:
        return [
            f"It computes the inside of attention again (recompute=selective); {framework} recomputes whole blocks, "
            "all or none."
        ]
    return [f"It recomputes some of its blocks only; {framework} recomputes all or none."] if len(every) > 1 else []


def configuration(plan: Plan, numbers: Uniform, **more: Any) -> dict[str, Any]:
    """The DeepSpeed configuration of a uniform plan, with further keys."""
    # What the adapter sets for its own engine is put back to DeepSpeed's defaults: messages, and with ZeRO-3 a linear
    # function that doesn't keep the gathered weights, without which memory is not what the plan counts.
    user: dict[str, Any] = {**more, "steps_per_print": 10}
    if numbers.zero == 3:
        user["zero_optimization"] = {"memory_efficient_linear": True}
    return deepspeed_config(plan, user)


def boundaries(plan: Plan, numbers: Uniform) -> dict[str, Any]:
    """What a ``PipelineModule`` is told. ``parts`` is its attribute of that name: stage s begins at block parts[s]."""
    counts = [len(stage.blocks) for stage in plan.stages]
    return {
        "num_stages": numbers.pp,
        "num_dp": numbers.dp,
        "block_counts": counts,
        "parts": [0, *accumulate(counts)],
        "blocks": [list(stage.blocks) for stage in plan.stages],
        "activation_checkpoint_interval": int(numbers.recompute == "full"),
    }


def _notes(plan: Plan, numbers: Uniform) -> list[str]:
    found = [optimizer(plan)]
    if numbers.pp > 1:
        found.append("stages.json: give PipelineModule one layer a block, and its parts instead of a partition_method.")
        found += [
            f'"{shared.parameter}" is tied: the layers that use it must be TiedLayerSpec.'
            for shared in plan.shared_parameters
        ]
    elif numbers.recompute == "full":
        found.append("The model itself must recompute its blocks (gradient_checkpointing_enable() in transformers).")
    return found


def optimizer(plan: Plan) -> str:
    """What the plan knows of the optimizer, and what it doesn't."""
    return f"The plan counts with {plan.optimizer}; the optimizer, its learning rate and clipping are yours to add."
