"""A row of the parity table, and how each framework's engine is set up to train it."""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.prepare import Lowered, prepare, realiser
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import Weights
from partita.plan import Plan
from tests.runtime.models import Batch
from tests.runtime.programs import Layout


@dataclass(frozen=True)
class Case:
    """One row of the table: a model, its layout, the precision (None: the model's own) and how it is trained."""

    model: str
    layout: Layout
    dtype: str | None = "float32"
    engine: str = "torch"
    padded: bool = False
    clip_norm: float | None = None
    optimizer: str = "adam"
    steps: int = 3
    # What the user's own DeepSpeed configuration says.
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """One rank's part, ready to train; ``train_batch`` takes the micro-batches of a step and returns its loss."""

    engine: Any
    stage: StageModule
    groups: Groups
    runtime: Runtime
    train_batch: Callable[[Iterator[Batch]], float]
    # This rank's parts of the trained parameters by name, as the model keeps them. May be collective.
    weights: Callable[[], dict[str, Tensor]]


def optimizer_of(case: Case, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if case.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.1)
    return torch.optim.Adam(parameters, lr=1e-2)


def torch_engine(case: Case, plan: Plan, lowered: Lowered, weights: Weights, seen: dict[str, Tensor]) -> Built:
    """The plain engine on this machine's CPU, with Megatron's layers where the plan's target has them."""
    prepared = prepare(lowered, weights=weights, device=torch.device("cpu"), realise=realiser(lowered, plan.target))
    stage, updated = prepared.stage, prepared.stage.updated
    # A stage may be frozen as a whole; a torch optimizer must have something.
    optimizer = optimizer_of(case, list(updated.values()) or [nn.Parameter(torch.zeros(0))])

    def look(*_: object) -> None:
        found = {name: parameter.grad.clone() for name, parameter in updated.items()}
        together = {n: divided.together(g) if (divided := stage.divided(n)) else g for n, g in found.items()}
        seen.update(_as_modelled(stage, together))

    optimizer.register_step_pre_hook(look)
    engine = TorchEngine(prepared.stages, prepared.groups, {stage.piece.stage: optimizer}, case.clip_norm)
    return Built(
        engine, stage, prepared.groups, prepared.runtime, lambda batches: prepared.runtime.step(batches, engine),
        lambda: _as_modelled(stage, {name: whole_parameter(stage, name) for name in updated}),
    )  # fmt: skip


def whole_parameter(stage: StageModule, name: str) -> Tensor:
    """This rank's part of a parameter. Collective where copies have chunks of it."""
    divided = stage.divided(name)
    return divided.whole() if divided else stage.parameters_by_name[name].detach()


def deepspeed_engine(case: Case, plan: Plan, lowered: Lowered, weights: Weights, seen: dict[str, Tensor]) -> Built:
    """DeepSpeed's engine, as a user makes it."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad

    from partita.adapters.deepspeed.initialize import initialize

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    forget_earlier_engines()
    make = None if case.optimizer == "configured" else lambda found: optimizer_of(case, list(found.values()))
    engine = initialize(
        plan, lowered, optimizer=make,
        config={"gradient_clipping": case.clip_norm or 0.0, **case.config}, weights=weights,
    )  # fmt: skip
    stage, trained, step = engine.module, engine.module.trained, engine._take_model_step

    def look(*given: object) -> None:
        """Its own functions put a gradient together, before it is clipped and however ZeRO has divided it."""
        found = {}
        for name, parameter in trained.items():
            gradient = safe_get_full_grad(parameter)
            # Unused parameters have none; with ZeRO-3 one without storage can't say its shape.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            found[name] = torch.zeros(shape) if gradient is None else gradient.detach().float().clone()
        step(*given)
        if case.clip_norm is not None:
            factor = min(1.0, case.clip_norm / (float(engine.get_global_grad_norm()) + 1e-6))
            found = {name: gradient * factor for name, gradient in found.items()}
        seen.update(_as_modelled(stage, found))

    def whole() -> dict[str, Tensor]:
        found = {}
        for name, parameter in trained.items():
            exact = safe_get_full_fp32_param(parameter)
            found[name] = (parameter if exact is None else exact).detach().clone()
        return _as_modelled(stage, found)

    engine._take_model_step = look
    return Built(engine, stage, engine.runtime.groups, engine.runtime, engine.train_batch, whole)


def forget_earlier_engines() -> None:
    """DeepSpeed counts on one process group a process, and on the same engines in all of its processes: here each test
    has a group of its own, and the third rank is needed less often than the first.
    """
    from deepspeed import comm
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init
    from deepspeed.utils import groups

    comm.comm.cdb = None
    groups._release_process_group_references(group=None)
    Init.param_id = 0
    (modules,) = inspect.unwrap(DeepSpeedZeRoOffload._register_deepspeed_module).__defaults__
    modules[0] = 0


def free_engines() -> None:
    """Take away what holds DeepSpeed's engines when nobody uses them any more: hooks of autograd, which hold optimizers
    by way of C++, where Python's collector can't look, and what ZeRO-3 keeps for the whole process.
    """
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    for found in gc.get_objects():
        if issubclass(type(found), ZeROOptimizer):
            for hook in getattr(found, "_grad_acc_hooks", ()):
                hook.remove()
    FWD_MODULE_STACK.clear()
    released = vars(PartitionedParameterCoordinator)["_PartitionedParameterCoordinator__params_to_release"]
    inspect.getclosurevars(released).nonlocals["func"].cache_clear()
    forget_earlier_engines()
    # What this collection frees in C++ lets the next one, which the rank makes after every call, find the rest.
    gc.collect()


def _as_modelled(stage: StageModule, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parts of parameters as the model keeps them: Megatron's layers store some transposed."""
    return {name: part.t() if name in stage.flipped else part for name, part in parts.items()}


# Each fills the dict that it is given with the gradients that its optimizer applies, averaged and clipped, by name.
ENGINES: dict[str, Callable[[Case, Plan, Lowered, Weights, dict[str, Tensor]], Built]] = {
    "torch": torch_engine,
    "megatron": torch_engine,
    "deepspeed": deepspeed_engine,
}
# What a plan must be made for to run on the engine.
TARGETS = {"torch": "partita", "megatron": "megatron", "deepspeed": "deepspeed"}
