"""A DeepSpeed engine that runs a program's queue: ``train_batch(iterator)``, one optimizer step a call.

The engine is DeepSpeed's own (optimizer, ZeRO, loss scaling, clipping, checkpoints); what is replaced is the loop
around it. Every backward task becomes one ``engine.backward`` of a scalar: the loss on the stage that has it, elsewhere
a surrogate whose gradient is the one that arrived. So ZeRO's hooks, the loss scale and the accumulation of gradients
work as in any DeepSpeed training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.config import ZeroStageEnum
from torch import Tensor

from partita.adapters.deepspeed.checkpoints import named_by_latest, read_first, save_whole
from partita.adapters.deepspeed.layout import described
from partita.adapters.deepspeed.resharded import is_resharded, load_resharded
from partita.adapters.deepspeed.untrained import stood_in
from partita.adapters.torch.begin import Batch
from partita.adapters.torch.engine import clip_gradients
from partita.adapters.torch.resharded import LAYOUT
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.save import save_dense
from partita.adapters.torch.stage import Code


class _Inject(torch.autograd.Function):
    """A scalar whose gradient with respect to the outputs is given, whatever its own is (DeepSpeed scales it).

    Gradients that arrive from a later stage carry the loss scale already.
    """

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        ctx.gradients = tensors[count:]
        return tensors[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.gradients, *(None for _ in ctx.gradients))


class PlannedEngine(DeepSpeedEngine):
    """DeepSpeedEngine over a StageModule. Made by ``partita.adapters.deepspeed.initialize``."""

    def attach(self, runtime: Runtime) -> None:
        """Give the engine its queue. Called once, after construction."""
        self.runtime = runtime
        self.boundary = False
        self.partitions_gradients = self.zero_optimization_stage() >= ZeroStageEnum.gradients
        if not self.partitions_gradients:
            # The queue says when gradients are averaged: after those of shared parameters have arrived.
            self.enable_backward_allreduce = False
            self.pipeline_parallelism = self.zero_optimization_stage() == ZeroStageEnum.optimizer_states

    def train_batch(self, batches: Iterator[Batch]) -> float:
        """One step on the micro-batches of this copy, from ``batches``. The loss of the global batch, on every rank.

        InputError, the same one on every rank, when a batch of any of them doesn't fit or no label counts.
        """
        self.module.train()
        # Restored by load_checkpoint: random draws are keyed by it.
        self.runtime.steps = self.global_steps
        loss = self.runtime.step(batches, Calls(self))
        self.micro_steps += self.gradient_accumulation_steps()
        return loss

    def save_model(self, folder: str) -> None:
        """Write the model as dense safetensors under its own names, padding stripped. Collective over all ranks."""
        whole = self.zero_optimization_stage() < ZeroStageEnum.weights
        save_dense(
            self.runtime, folder,
            lambda parameter: nullcontext() if whole else deepspeed.zero.GatheredParameters([parameter]),
        )  # fmt: skip

    def save_checkpoint(
        self, save_dir: str, tag: Any = None, client_state: Any = {}, save_latest: bool = True,  # noqa: B006
        exclude_frozen_parameters: bool = False,
    ) -> bool:  # fmt: skip
        """DeepSpeed's checkpoint, whole or not at all. Collective over all ranks.

        InputError, the same on every rank, where one can't write its files: earlier checkpoints and ``latest`` stay.
        """
        if self.checkpoint_engine.is_decoupled():
            # It goes on writing after the call.
            return bool(super().save_checkpoint(save_dir, tag, client_state, save_latest, exclude_frozen_parameters))

        def save(hidden: str) -> None:
            DeepSpeedEngine.save_checkpoint(self, save_dir, hidden, client_state, False, exclude_frozen_parameters)

        save_whole(self, save, save_dir, tag, save_latest)
        return True

    def load_checkpoint(
        self, load_dir: str, tag: Any = None, load_module_strict: bool = True, load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True, load_module_only: bool = False, custom_load_fn: Any = None,
    ) -> tuple[str | None, Any]:  # fmt: skip
        """DeepSpeed's, which returns (None, None) where no tag is given and none is the latest. Collective.

        InputError, the same on every rank, where a file of any of them is missing or broken: nothing is loaded then.
        """
        universal = self.load_universal_checkpoint()
        tag = named_by_latest(load_dir) if tag is None and not universal else tag
        optimizer = load_optimizer_states and not load_module_only
        path: str | None
        if tag is not None and not universal and is_resharded(load_dir, tag):
            path, state = load_resharded(self, load_dir, tag, optimizer, load_lr_scheduler_states, load_module_only)
        else:
            with nullcontext() if tag is None or universal else read_first(self, load_dir, tag, optimizer):
                path, state = super().load_checkpoint(
                    load_dir, tag, load_module_strict, load_optimizer_states, load_lr_scheduler_states,
                    load_module_only, custom_load_fn,
                )  # fmt: skip
        if state is not None and not load_module_only:
            self.resume(state)
        return path, state

    def resume(self, state: Mapping[str, Any]) -> None:
        """What else goes on from a checkpoint's state. Here nothing does: draws are keyed by DeepSpeed's steps."""

    def _common_checkpoint_state(self, *args: Any) -> dict[str, Any]:
        stage = self.runtime.stage
        stages, at = len(self.runtime.program.pieces), dict(stage.context.coordinates)
        layout = described(self, stage, stages, at, self.outside_buffers())
        return {**super()._common_checkpoint_state(*args), LAYOUT: layout}

    def outside_buffers(self) -> Mapping[str, Tensor]:
        """The buffers of the model that the engine's module hasn't: a stage has constants and no buffers."""
        return self.runtime.buffers

    def is_gradient_accumulation_boundary(self) -> bool:
        return self.boundary if hasattr(self, "runtime") else super().is_gradient_accumulation_boundary()

    def clip_fp32_gradients(self) -> None:
        # DeepSpeed's own counts whole parameters on the first model-parallel rank alone: later stages would be missed.
        self._global_grad_norm = clip_gradients(self.runtime.stages, self.runtime.groups, self.gradient_clipping())


class Calls:
    """A flush's view of a DeepSpeed engine, for one step."""

    averages = True

    def __init__(self, engine: PlannedEngine):
        self.engine = engine
        self.remaining = sum(task.kind == "backward" for task in engine.runtime.queue)
        # An average over one copy: DeepSpeed would copy all gradients to a buffer and back. ZeRO-1 does more than that.
        self.alone = engine.runtime.place.stage not in engine.runtime.groups.data and not engine.zero_optimization()
        if (nothing := stood_in(engine.runtime.stage)) is not None:
            # Norms are of gradients that are there: a zero.
            self._backward(0 * nothing.sum(), announced=False)

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        return self.engine(batch, inputs, key, code)

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        self.remaining -= 1
        # ZeRO-2 and -3 average in every backward and finish in the last one.
        self.engine.boundary = self.engine.partitions_gradients and self.remaining == 0
        pairs = list(zip(outputs, gradients, strict=True))
        scalars = [out for out, gradient in pairs if gradient is None]
        arrived = [(out, gradient) for out, gradient in pairs if gradient is not None]
        if arrived:
            scalars.append(_Inject.apply(len(arrived), *(o for o, _ in arrived), *(g for _, g in arrived)))
        # A parameter's gradient from another stage: no forward of this engine has announced this backward.
        announced = not all(out.is_leaf for out in outputs)
        self._backward(sum(scalars[1:], start=scalars[0]), announced)

    def _backward(self, scalar: Tensor, announced: bool) -> None:
        if isinstance(self.engine.optimizer, ZeROOptimizer) and not announced:
            self.engine._backward_prologue()
        self.engine.backward(scalar, scale_wrt_gas=False)

    def reduce(self, stage: int) -> None:
        if self.engine.partitions_gradients or self.alone:
            return
        self.engine.boundary = True
        if isinstance(self.engine.optimizer, BF16_Optimizer):
            self.engine.buffered_allreduce_fallback(grads=None)
        else:
            self.engine.allreduce_gradients()

    def update(self, stage: int) -> None:
        self.engine.boundary = True
        self.engine._take_model_step(None)
        self.engine.boundary = False
