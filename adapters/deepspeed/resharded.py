"""Loading what ``partita reshard`` wrote for this plan: tensors by name, into wherever DeepSpeed keeps them.

Its files have each tensor of a stage as one device of a copy holds it, whole over data-parallel copies: of it a rank
reads what it updates. They are mapped into memory, so that no rank holds more than a tensor beside its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from partita.adapters.deepspeed.checkpoints import agree_on
from partita.adapters.deepspeed.layout import require_same_parts
from partita.adapters.deepspeed.slots import Slot, base_optimizer, slots
from partita.adapters.torch.resharded import LAYOUT_FILE, REST_FILE, read_layout, tensors_file
from partita.adapters.torch.stage import StageModule
from partita.errors import InputError, PartitaError

# A model's buffers are constants, which a stage has already: they are there for the next reshard.
PARAMETER, BUFFER = "parameter", "buffer"


def is_resharded(folder: str | Path, tag: object) -> bool:
    """Whether ``partita reshard`` wrote this checkpoint."""
    return Path(folder, str(tag), LAYOUT_FILE).is_file()


class Resharded:
    """A rank's file of a checkpoint, opened and found to fit. InputError where it doesn't."""

    def __init__(self, path: Path, engine: DeepSpeedEngine, stage: StageModule):
        layout = read_layout(path)
        if layout["ranks"] != engine.mp_world_size:
            raise InputError(
                f"{path}: was written for a plan that lays a copy of the model on {layout['ranks']} devices, this one "
                f"on {engine.mp_world_size}; partita reshard writes it for this plan"
            )
        rank = engine.mpu.get_model_parallel_rank()
        self.path = path / tensors_file(rank)
        try:
            self.file = safe_open(str(self.path), framework="pt")
            self.keys = set(self.file.keys())
            self.rest = torch.load(path / REST_FILE, map_location="cpu", weights_only=False)
        except FileNotFoundError as error:
            raise InputError(f"{error.filename or self.path}: no such file") from None
        except (SafetensorError, RuntimeError, EOFError, OSError, UnpicklingError) as error:
            raise InputError(f"{path}: can't be read, a file is truncated or broken: {error}") from None
        self.states = sorted({key.partition(":")[0] for key in self.keys} - {PARAMETER, BUFFER})
        self.flipped = stage.flipped
        for name, parameter in stage.parameters_by_name.items():
            self._fits(name, parameter)
        require_same_parts(self.path, layout["parameters"][rank], stage, dict(stage.context.coordinates))

    def _fits(self, name: str, parameter: nn.Parameter) -> None:
        if f"{PARAMETER}:{name}" not in self.keys:
            raise InputError(f'{self.path}: has no "{name}"; partita reshard writes it for this plan')
        shape = list(getattr(parameter, "ds_shape", parameter.shape))
        shape = shape[::-1] if name in self.flipped else shape
        found = self.file.get_slice(f"{PARAMETER}:{name}").get_shape()
        if found != shape:
            raise InputError(
                f'{self.path}: its part of "{name}" is {found}, this plan needs {shape}; partita reshard writes it for '
                "this plan"
            )

    def flat(self, state: str, name: str) -> Tensor:
        """A tensor as this rank stores it, laid flat; mapped where it isn't transposed."""
        found = self.file.get_tensor(f"{state}:{name}")
        return (found.t() if name in self.flipped else found).reshape(-1)


@torch.no_grad()
def load_parameters(engine: DeepSpeedEngine, stage: StageModule, found: Resharded) -> None:
    """Weights of the module, and the optimizer's copies of them in higher precision."""
    at = slots(engine, stage.trained)
    with _partitioned(engine):
        for name, parameter in stage.parameters_by_name.items():
            flat = found.flat(PARAMETER, name)
            if hasattr(parameter, "ds_tensor"):
                each = parameter.ds_tensor.numel()
                start = min(each * dist.get_rank(group=parameter.ds_process_group), len(flat))
                own = flat[start : start + each]
                parameter.ds_tensor.data.view(-1)[: len(own)].copy_(own)
            else:
                parameter.copy_(flat.view(parameter.shape))
            if name in at:
                _put(at[name], at[name].owner.data, flat)


@torch.no_grad()
def load_optimizer(engine: DeepSpeedEngine, stage: StageModule, found: Resharded) -> None:
    """The optimizer's state and the options of its groups. InputError where DeepSpeed keeps together what differs."""
    base, at = base_optimizer(engine), slots(engine, stage.trained)
    for slot in at.values():
        # What an engine has that was trained before.
        base.state[slot.owner].clear()
    scalars: Mapping[tuple[str, str], Any] = found.rest["scalars"]
    for name, slot in at.items():
        state = base.state[slot.owner]
        for word in found.states:
            if f"{word}:{name}" in found.keys:
                if word not in state:
                    state[word] = torch.zeros_like(slot.owner.data)
                _put(slot, state[word], found.flat(word, name))
        for (of, word), value in scalars.items():
            if of != name:
                continue
            if word in state and float(state[word]) != float(value):
                raise InputError(
                    f'{found.path}: "{name}" has {word} {float(value):g}, others of its group {float(state[word]):g}; '
                    "DeepSpeed's ZeRO keeps one number for a group: put it in a group of its own, or plan with zero=0"
                )
            state[word] = value.clone() if isinstance(value, Tensor) else value
    if hasattr(engine.optimizer, "_hp_optimizer_states_linked"):
        # The parameters' views of it are of what was there before.
        engine.optimizer._hp_optimizer_states_linked = False
    _options(base, at, found.rest["groups"])
    scale = getattr(engine.optimizer, "loss_scaler", None) or getattr(engine.optimizer, "loss_scale_config", None)
    for word, value in found.rest["loss_scale"].items():
        if hasattr(scale, word):
            setattr(scale, word, value)


def _options(base: Any, at: Mapping[str, Slot], groups: list[dict[str, Any]]) -> None:
    """Each group's options are those of the group that its parameters were in."""
    of = {name: index for index, group in enumerate(groups) for name in group["names"]}
    for index, own in enumerate(base.param_groups):
        sources = sorted({of[name] for name, slot in at.items() if slot.group == index and name in of})
        if not sources and len(groups) == len(base.param_groups):
            # This rank has none of its parameters.
            sources = [index]
        for source in sources[:1]:
            own.update(groups[source]["options"])


def _put(slot: Slot, whole: Tensor, flat: Tensor) -> None:
    slot.of(whole).copy_(flat[slot.start : slot.start + slot.count])


@contextmanager
def _partitioned(engine: DeepSpeedEngine) -> Iterator[None]:
    """Inside, ZeRO-3 has no parameter whole; after it, those that it keeps whole have the new values."""
    if engine._optimizer_has_ckpt_event_prologue():
        engine.optimizer.checkpoint_event_prologue()
    yield
    if engine._optimizer_has_ckpt_event_epilogue():
        engine.optimizer.checkpoint_event_epilogue()


def load_resharded(
    engine: Any, folder: str, tag: object, optimizer: bool, scheduler: bool, module_only: bool
) -> tuple[str, dict[str, Any]]:
    """What ``load_checkpoint`` returns. Collective over all ranks.

    InputError, the same on every rank, where a file of any of them is missing, broken, or another plan's.
    """
    stage, path = engine.runtime.stage, Path(folder, str(tag))
    found: Resharded | None = None
    failure: Exception | None = None
    try:
        found = Resharded(path, engine, stage)
    except PartitaError as error:
        failure = error
    agree_on(engine, failure)
    assert found is not None
    load_parameters(engine, stage, found)
    rest = found.rest
    if optimizer:
        if rest["groups"]:
            try:
                load_optimizer(engine, stage, found)
            except PartitaError as error:
                failure = error
            agree_on(engine, failure)
        elif engine.global_rank == 0:
            print(f"partita: {path} has no optimizer state: the optimizer begins anew", file=sys.stderr, flush=True)
    if not module_only:
        if scheduler and engine.lr_scheduler is not None and rest["lr_scheduler"] is not None:
            engine.lr_scheduler.load_state_dict(rest["lr_scheduler"])
        engine.global_steps, engine.skipped_steps = rest["steps"], rest["skipped_steps"]
        engine.global_samples = rest["samples"]
    return str(found.path), dict(rest["client"])
