"""A DeepSpeed engine whose module runs a plan when it is called, so that loops and trainers use it as any other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.constants import ROUTE_TRAIN
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.config import ZeroStageEnum
from torch import Tensor, nn

from partita.adapters.deepspeed.engine import Calls, PlannedEngine
from partita.adapters.torch.begin import agree
from partita.adapters.torch.flush import Flush
from partita.adapters.torch.loop.batch import Given, given
from partita.adapters.torch.loop.codes import Mode
from partita.adapters.torch.loop.dense import dense_state
from partita.adapters.torch.loop.facade import CHILD, FacadeError
from partita.adapters.torch.loop.loop import Loop
from partita.adapters.torch.prepare import Prepared
from partita.adapters.torch.whole import write_whole
from partita.errors import InputError, PartitaError
from partita.spacetime.preserve import Version, step_tasks

# Under which a checkpoint keeps the number of calls.
CALLS = "partita_calls"


class LoopEngine(PlannedEngine):
    """DeepSpeedEngine over a facade. Made by ``deepspeed.initialize`` with the key ``"partita"``.

    ``predicted_step_seconds`` is the plan's prediction for an optimizer step, ``step_seconds`` what the last one took.
    """

    def follow(self, prepared: Prepared, loop: Loop, micro: int, user_config: Mapping[str, Any]) -> None:
        """Give the engine its loop. Called once, after construction. ``micro``: samples that a rank calls it with."""
        self.loop = loop
        self.plan = loop.plan
        self.runtime = prepared.runtime
        self.micro = micro
        # What others ask of the configuration they ask of their own.
        self.config = dict(user_config)
        self.partitions_gradients = self.zero_optimization_stage() >= ZeroStageEnum.gradients
        self.boundary = False
        self.ending = False
        program = loop.program
        version = Version(prepared.lowered.captured.graph, program.pieces)
        self.step_queue = step_tasks(version, loop.groups.rank, program.places, program.devices_of)
        # With a pipeline gradients of shared parameters come first, and then those of copies are averaged.
        self.staged = len(program.pieces) > 1
        if self.staged:
            self.enable_backward_allreduce = False
            self.pipeline_parallelism = self.zero_optimization_stage() == ZeroStageEnum.optimizer_states
        self.predicted_step_seconds = loop.plan.predicted.step_seconds * self.gradient_accumulation_steps()
        self.step_seconds: float | None = None
        self._step_ended: float | None = None

    def call(self, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the facade's forward does: learn where gradients are on, look where they are off."""
        batches: list[Given] | PartitaError
        try:
            batches = [given(self.module, forward, args, kwargs, self.loop.device)]
        except PartitaError as error:
            batches = error
        if not torch.is_grad_enabled():
            # The next step begins after the evaluation.
            self._step_ended = None
            return self.loop.look(batches, mode=self._mode())
        if self._step_ended is None:
            self._step_ended = time.perf_counter()
        return self.loop.learn(batches, mode=self._mode(), factor=self._loss_scale())

    def _mode(self) -> Mode:
        training = self.module.training
        others = tuple(
            path
            for path, module in self.module.named_modules()
            if module.training != training and path.split(".")[0] != CHILD
        )
        return Mode(training, others)

    def _loss_scale(self) -> float:
        return float(self.optimizer.loss_scale) if self.fp16_enabled() else 1.0

    def train_batch(self, batches: Iterator[Any]) -> float:
        """One step on the next batches of this rank, as many as are accumulated. The loss of all, on every rank.

        They run as one flush of the pipeline, where ZeRO keeps whole gradients; otherwise one after another.
        """
        self.module.train()
        steps = self.gradient_accumulation_steps()
        taken: list[Given] | Exception
        try:
            taken = self._take(batches, steps)
        except Exception as error:  # a user's iterator may raise anything
            taken = error
        if self.partitions_gradients:
            return self._one_by_one(taken)
        if self._step_ended is None:
            self._step_ended = time.perf_counter()
        loss = self.loop.learn_loss(taken, mode=self._mode(), factor=self._loss_scale())
        # The calls before the last of a step, which are part of this one.
        self.micro_steps += steps - 1
        self.backward(loss, scale_wrt_gas=False)
        self.step()
        return float(loss)

    def _take(self, batches: Iterator[Any], steps: int) -> list[Given]:
        forward = type(self.module).forward.__get__(self.module)
        taken = []
        for index in range(steps):
            try:
                batch = next(batches)
            except StopIteration:
                raise InputError(f"the iterator ended after {index} batches, a step takes {steps}") from None
            taken.append(given(self.module, forward, *_arguments(batch), self.loop.device))
        return taken

    def _one_by_one(self, taken: list[Given] | Exception) -> float:
        if isinstance(taken, Exception):
            # The other ranks are in their first call, and are told.
            self.loop.learn(taken, mode=self._mode())
            raise AssertionError("it has raised")
        total = 0.0
        for one in taken:
            returned = self(**one.tensors, **dict(one.shape.plain))
            loss = returned["loss"] if isinstance(returned, Mapping) else returned
            loss = loss[0] if isinstance(loss, (tuple, list)) else loss
            self.backward(loss)
            self.step()
            total += float(loss) / len(taken)
        return total

    def is_gradient_accumulation_boundary(self) -> bool:
        if not hasattr(self, "loop") or not self.staged:
            return bool(DeepSpeedEngine.is_gradient_accumulation_boundary(self))
        if self.ending:
            return self.boundary
        # What a boundary means for gradients happens at the end of the step.
        return not self._running_engine_backward and bool(DeepSpeedEngine.is_gradient_accumulation_boundary(self))

    def _take_model_step(self, lr_kwargs: Any) -> None:
        self.ending = True
        try:
            Flush(self.loop, _Ending(self, lr_kwargs), [], []).run(self.step_queue)
        finally:
            self.ending = False
        now = time.perf_counter()
        if self._step_ended is not None:
            self.step_seconds = now - self._step_ended
        self._step_ended = now

    def apply(self, lr_kwargs: Any) -> None:
        """The optimizer's own step."""
        DeepSpeedEngine._take_model_step(self, lr_kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        # Nothing is averaged before the end of a step; that of DeepSpeed refuses some ZeRO stages.
        return nullcontext()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        raise FacadeError("torch.compile and the key partita don't go together: the plan runs the model's ops")

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.micro if hasattr(self, "micro") else super().train_micro_batch_size_per_gpu()

    def deepspeed_io(
        self, dataset: Any, batch_size: int | None = None, route: str = ROUTE_TRAIN, pin_memory: bool = True,
        data_sampler: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """DeepSpeed's loader of a data set, which divides it over all ranks; in order where it isn't for training."""
        if data_sampler is None:
            loop = self.loop
            data_sampler = torch.utils.data.DistributedSampler(
                dataset, num_replicas=len(loop.program.places), rank=loop.groups.rank, shuffle=route == ROUTE_TRAIN
            )
        return super().deepspeed_io(dataset, batch_size, route, pin_memory, data_sampler, **kwargs)

    def state(self) -> dict[str, Tensor]:
        """The dense model, as its own state_dict had it, on rank 0; on the others too where each has all of it.

        Collective over all ranks where they don't: FacadeError where some rank doesn't take part.
        """
        whole = self.zero_optimization_stage() < ZeroStageEnum.weights
        if not (whole and self.loop.alone):
            self.loop.together.require(f"{type(self.module).__name__}.state_dict()")
        return dense_state(
            self.loop, self.module, None if whole else lambda one: deepspeed.zero.GatheredParameters([one])
        )

    def _common_checkpoint_state(self, *args: Any) -> dict[str, Any]:
        return {**super()._common_checkpoint_state(*args), CALLS: self.loop.steps}

    def outside_buffers(self) -> Mapping[str, Tensor]:
        # The facade has them.
        return {}

    def resume(self, state: Mapping[str, Any]) -> None:
        # A checkpoint that didn't come from a loop has counted steps alone.
        self.loop.steps = state.get(CALLS, self.global_steps * self.gradient_accumulation_steps())

    def module_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        # DeepSpeed's own checkpoints hold what each rank has.
        with _bare(self.module):
            return super().module_state_dict(*args, **kwargs)

    def load_module_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        with _bare(self.module):
            return super().load_module_state_dict(*args, **kwargs)

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return True

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Tensor]:
        return self._consolidated_16bit_state_dict(exclude_frozen_parameters)

    def _consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Tensor]:
        found = self.state()
        frozen = self.loop.frozen if exclude_frozen_parameters else ()
        return {name: value for name, value in found.items() if name not in frozen}

    def save_16bit_model(
        self, save_dir: str, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False
    ) -> bool:
        """Write the dense model in one file, from rank 0. Collective over all ranks.

        InputError on every rank where it can't be written.
        """
        found = self._consolidated_16bit_state_dict(exclude_frozen_parameters)
        failure: PartitaError | None = None
        if self.global_rank == 0:
            path = Path(save_dir, save_filename)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, lambda part: torch.save(found, part))
            except OSError as error:
                failure = InputError(f"{save_dir}: can't be made: {error.strerror}")
            except PartitaError as error:
                failure = error
        agree(self.loop.groups.everyone, failure, torch.zeros((), dtype=torch.float64, device=self.loop.device))
        return True


class _Ending(Calls):
    """The end of a step of a loop: gradients of shared parameters, averages, the optimizer."""

    def __init__(self, engine: LoopEngine, lr_kwargs: Any):
        super().__init__(engine)
        self.lr_kwargs = lr_kwargs

    def reduce(self, stage: int) -> None:
        # Without a pipeline DeepSpeed's backward has averaged them.
        if self.engine.staged:
            super().reduce(stage)

    def update(self, stage: int) -> None:
        self.engine.boundary = True
        self.engine.apply(self.lr_kwargs)


@contextmanager
def _bare(module: nn.Module) -> Iterator[None]:
    """Inside, a facade's state is what it holds."""
    kept = {name: module.__dict__.pop(name) for name in ("state_dict", "load_state_dict") if name in module.__dict__}
    try:
        yield
    finally:
        module.__dict__.update(kept)


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as a call's arguments: by name, or in order."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}
