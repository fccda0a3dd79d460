"""Make a DeepSpeed engine for a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import deepspeed.ops
import torch
from deepspeed.runtime.config import DeepSpeedConfig
from torch import nn

from partita.adapters.deepspeed.config import deepspeed_config
from partita.adapters.deepspeed.engine import PlannedEngine
from partita.adapters.deepspeed.mpu import Mpu
from partita.adapters.torch.prepare import Lowered, prepare, realiser
from partita.adapters.torch.stage import BlockModule
from partita.adapters.torch.weights import Weights
from partita.plan import Plan

Optimizer = Callable[[Mapping[str, nn.Parameter]], torch.optim.Optimizer]


def initialize(
    plan: Plan,
    lowered: Lowered,
    *,
    optimizer: Optimizer,
    config: Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    seed: int = 0,
    device: torch.device | None = None,
) -> PlannedEngine:
    """This rank's DeepSpeed engine for a lowered plan. Collective over all ranks; the process group must exist.

    ``optimizer`` makes a torch optimizer from this rank's parameters by the model's names (to group them by name).
    ``config`` is the user's DeepSpeed configuration, completed by the plan's. PlanError where the two disagree.
    """
    if not torch.cuda.is_available():
        # A shared-memory extension that DeepSpeed would compile for CPUs; gloo does its work.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
    complete = deepspeed_config(plan, config)
    zero3 = complete["zero_optimization"]["stage"] == 3

    def partition(block: BlockModule) -> None:
        deepspeed.zero.Init(module=block, config_dict_or_path=complete)

    prepared = prepare(
        lowered, weights=weights, seed=seed, device=device,
        realise=realiser(lowered, plan.target), finish=partition if zero3 else None,
    )  # fmt: skip
    mpu = Mpu(lowered.program, prepared.groups)
    for name, parameter in prepared.stage.parameters_by_name.items():
        # What DeepSpeed's norms go by: cut parameters count on every rank, copies of another stage's nowhere.
        parameter.tensor_model_parallel = prepared.stage.piece.parameters[name] is not None
        parameter.ds_pipe_replicated = name in prepared.stage.piece.copies
    engine = PlannedEngine(
        args=None, model=prepared.stage, optimizer=optimizer(prepared.stage.trained), mpu=mpu,
        config=complete, config_class=DeepSpeedConfig(complete, mpu), dont_change_device=True,
    )  # fmt: skip
    engine.attach(prepared.runtime)
    return engine
