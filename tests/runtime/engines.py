"""A row of the parity table, and how each framework's engine is set up to train it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.prepare import Lowered, prepare
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


@dataclass(frozen=True)
class Built:
    """One rank's part, ready to train; ``train_batch`` takes the micro-batches of a step and returns its loss."""

    stage: StageModule
    groups: Groups
    runtime: Runtime
    train_batch: Callable[[Iterator[Batch]], float]


def optimizer_of(case: Case, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if case.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.1)
    return torch.optim.Adam(parameters, lr=1e-2)


def torch_engine(case: Case, plan: Plan, lowered: Lowered, weights: Weights, seen: dict[str, Tensor]) -> Built:
    """The plain engine on this machine's CPU."""
    prepared = prepare(lowered, weights=weights, device=torch.device("cpu"))
    trained = prepared.stage.trained
    # A stage may be frozen as a whole; a torch optimizer must have something.
    optimizer = optimizer_of(case, list(trained.values()) or [nn.Parameter(torch.zeros(0))])

    def look(*_: object) -> None:
        seen.update({name: parameter.grad.clone() for name, parameter in trained.items()})

    optimizer.register_step_pre_hook(look)
    engine = TorchEngine(prepared.stage, prepared.groups, optimizer, case.clip_norm)
    return Built(
        prepared.stage, prepared.groups, prepared.runtime, lambda batches: prepared.runtime.step(batches, engine)
    )


# Each fills the dict that it is given with the gradients that its optimizer applies, averaged and clipped, by name.
ENGINES: dict[str, Callable[[Case, Plan, Lowered, Weights, dict[str, Tensor]], Built]] = {"torch": torch_engine}
