"""A plan as a configuration of accelerate's launcher, and the DeepSpeed configuration that it names."""

from __future__ import annotations

import re
from typing import Any

from partita.plan import Plan
from partita.plugins.export.deepspeed import configuration, optimizer
from partita.plugins.export.exported import Exported
from partita.plugins.export.trainer import replicas

NAME = "accelerate"


def export(plan: Plan) -> Exported:
    """``accelerate.json`` and ``deepspeed.json``."""
    numbers = replicas(plan, NAME)
    launcher: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        # Precision and accumulation stand in DeepSpeed's file; accelerate refuses them in both.
        "deepspeed_config": {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": numbers.zero == 3},
        "machine_rank": 0,
        "num_machines": nodes(plan),
        "num_processes": len(plan.devices),
    }
    notes = [
        f"The batch size of the data loader must be {numbers.micro_batch}.",
        "accelerate.json names deepspeed.json without its folder: start accelerate there, or put in the whole path.",
        optimizer(plan),
    ]
    if nodes(plan) > 1:
        notes.append("On every machine but the first, machine_rank is its number, and main_process_ip names the first.")
    if numbers.recompute == "full":
        notes.append("The model itself must recompute its blocks (gradient_checkpointing_enable() in transformers).")
    return Exported(
        NAME,
        {"accelerate.json": launcher, "deepspeed.json": configuration(plan, numbers)},
        len(plan.devices),
        tuple(notes),
    )


def nodes(plan: Plan) -> int:
    """Machines of a cluster that is named nodes x devices x preset. Any other name counts as one machine."""
    shape = re.match(r"(\d+)x(\d+)x", plan.cluster)
    return int(shape[1]) if shape and int(shape[1]) * int(shape[2]) == len(plan.devices) else 1
