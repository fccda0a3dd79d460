"""Make a DeepSpeed engine for a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import deepspeed.ops
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DeepSpeedConfig
from torch import nn

from partita.adapters.deepspeed.engine import PlannedEngine
from partita.adapters.deepspeed.mpu import Mpu
from partita.adapters.deepspeed.untrained import stand_in
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.prepare import Lowered, prepare, realiser
from partita.adapters.torch.stage import BlockModule, StageModule
from partita.adapters.torch.weights import Weights
from partita.errors import PlanError
from partita.plan import Plan
from partita.plugins.export.deepspeed_config import deepspeed_config
from partita.reach import beyond

Optimizer = Callable[[Mapping[str, nn.Parameter]], torch.optim.Optimizer]


def initialize(
    plan: Plan,
    lowered: Lowered,
    *,
    optimizer: Optimizer | None = None,
    config: Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    seed: int = 0,
    device: torch.device | None = None,
) -> PlannedEngine:
    """This rank's DeepSpeed engine for a lowered plan. Collective over all ranks.

    ``optimizer`` makes a torch optimizer from this rank's parameters by the model's names (to group them by name; of a
    stage that is frozen as a whole it is given one parameter, "untrained", which is none of the model's); without, the
    configuration has an ``optimizer`` section. ``config`` is the user's DeepSpeed configuration, completed by the
    plan's. Without ``device`` it is this process's accelerator, or the CPU. PlanError where the two configurations
    disagree, and for what DeepSpeed can't run: every rank says so before any does work.
    """
    complete = deepspeed_config(plan, config)
    if (optimizer is None) != ("optimizer" in complete):
        raise PlanError(
            "initialize was given an optimizer, and the DeepSpeed configuration has one too; remove one"
            if optimizer
            else 'there is no optimizer: give initialize one, or the DeepSpeed configuration an "optimizer" section'
        )
    check(plan, own_micro_batches=True)
    connect()
    parting = Parting(lowered, complete)
    prepared = prepare(
        lowered, weights=weights, seed=seed, device=device or own_device(), realise=realiser(lowered, plan.target),
        finish=parting.finish, divides=False,
    )  # fmt: skip
    mpu = parting.mpu(prepared.groups)
    # Stages may have micro-batches of their own.
    complete = deepspeed_config(plan, config, stage=prepared.runtime.place.stage)
    mark_copies(prepared.stage)
    trained = prepared.stage.trained or stand_in(prepared.stage)
    engine = PlannedEngine(
        args=None, model=prepared.stage, optimizer=optimizer(trained) if optimizer else None, mpu=mpu,
        model_parameters=list(trained.values()), config=complete, config_class=DeepSpeedConfig(complete, mpu),
        dont_change_device=True,
    )  # fmt: skip
    engine.attach(prepared.runtime)
    return engine


class Parting:
    """How parameters are divided over copies: the rank's unit, and ZeRO-3's division of a block that is filled."""

    def __init__(self, lowered: Lowered, complete: Mapping[str, Any]):
        self.program = lowered.program
        self.complete = complete
        self._mpu: Mpu | None = None

    def mpu(self, groups: Groups) -> Mpu:
        """The same one each time: it makes process groups."""
        if self._mpu is None:
            self._mpu = Mpu(self.program, groups)
        return self._mpu

    @property
    def finish(self) -> Callable[[BlockModule, Groups], None] | None:
        """What ``prepare`` does with each block."""
        return self._divide if self.complete["zero_optimization"]["stage"] == 3 else None

    def _divide(self, block: BlockModule, groups: Groups) -> None:
        mpu = self.mpu(groups)
        deepspeed.zero.Init(
            module=block, config_dict_or_path=self.complete, data_parallel_group=mpu.get_data_parallel_group(), mpu=mpu
        )


def connect(port: int | None = None) -> None:
    """Join the job's other processes, unless that has been done."""
    if not torch.cuda.is_available():
        # A shared-memory extension that DeepSpeed would compile for CPUs; gloo does its work.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(dist_backend=backend, verbose=False, **({"distributed_port": port} if port else {}))


def own_device() -> torch.device:
    """A process's own accelerator, as torchrun numbers them; where there is none, the CPU."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    get_accelerator().set_device(local)
    return torch.device(get_accelerator().device_name(local))


def mark_copies(stage: StageModule) -> None:
    """DeepSpeed's norms go by this and by the stage's own mark of cut parameters: copies are counted by their owner."""
    for name, parameter in stage.parameters_by_name.items():
        parameter.ds_pipe_replicated = name in stage.piece.copies


def check(plan: Plan, *, own_micro_batches: bool = False) -> None:
    """PlanError for what DeepSpeed's engine can't run here. ``own_micro_batches`` as of ``beyond``."""
    if reasons := beyond(plan, own_micro_batches=own_micro_batches):
        raise PlanError(f"DeepSpeed's engine can't run the plan: {'; '.join(reasons)}; the target partita can")
    accelerator = get_accelerator()
    supported = {"fp32": True, "bf16": accelerator.is_bf16_supported(), "fp16": accelerator.is_fp16_supported()}
    if not supported.get(plan.precision, False):
        works = " and ".join(precision for precision, can in supported.items() if can)
        raise PlanError(
            f'the plan computes in {plan.precision}, DeepSpeed on this machine (device "{accelerator.device_name()}") '
            f"in {works}"
        )
    zero = max(strategy.zero for stage in plan.stages for strategy in stage.strategies)
    if zero > 1 and len(plan.stages) > 1:
        raise PlanError(
            f"the plan has ZeRO stage {zero} with {len(plan.stages)} pipeline stages; DeepSpeed divides gradients and "
            "parameters (2 and 3) only without a pipeline: zero=1 and 0 work, or pp=1"
        )


def require_trained(plan: Plan, lowered: Lowered) -> None:
    """PlanError for a stage that is frozen as a whole, for an engine around the user's own model and optimizer."""
    graph = lowered.captured.graph
    for piece, stage in zip(lowered.program.pieces, plan.stages, strict=True):
        if not any(graph.tensor[name].gradient for name in piece.parameters if name not in piece.copies):
            blocks = stage.blocks[0] if len(stage.blocks) == 1 else f"{stage.blocks[0]} … {stage.blocks[-1]}"
            raise PlanError(
                f'nothing is trained in stage "{stage.name}" (blocks {blocks}), and DeepSpeed needs an optimizer on '
                "every rank of a loop: give the stage a block that is trained, or train by train_batch, in an engine "
                "that partita.adapters.deepspeed makes for the plan"
            )
