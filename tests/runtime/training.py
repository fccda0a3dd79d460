"""What a rank does in the parity tests: train its part of a program and the whole model beside it, and compare.

Every rank trains the dense model itself, so that no rank's part is compared with what another rank sent. Parts are put
together by ``join`` before they are compared, so that where a part belongs is tested too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.prepare import Lowered, prepare
from partita.adapters.torch.runtime import Engine
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import StateDict, join
from partita.plugins.capture_torch import Captured, capture_module
from partita.spacetime.program import Task
from tests.runtime.models import MODELS, Batch
from tests.runtime.programs import Layout, program

CPU = torch.device("cpu")


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


@dataclass
class Outcome:
    """What one rank saw. Errors are against the dense model: gradients of the first step as (norm of the difference,
    norm), weights after the last as the largest difference; ``values``: the gradients of small parameters. ``shared``:
    the bytes of tied parameters after each step. ``dense_norm``: the first step's, before clipping.
    """

    stage: int
    tensor: int
    names: list[str]
    losses: list[float] = field(default_factory=list)
    dense_losses: list[float] = field(default_factory=list)
    gradients: dict[str, tuple[float, float]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    shared: dict[str, list[bytes]] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    queue: tuple[Task, ...] = ()
    dense_norm: float = 0.0


def optimizer_of(case: Case, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if case.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.1)
    return torch.optim.Adam(parameters, lr=1e-2)


class Part:
    """One rank's part of a case: stage, engine and runtime, and the gradients that its optimizer saw last."""

    def __init__(self, case: Case, weights: dict[str, Tensor], observe: Callable[[Task], None] | None = None):
        captured = capture(case.model, case.dtype)
        self.case = case
        self.program = program(captured.graph, case.layout)
        weights_of = StateDict(weights, captured.graph.aliases)
        prepared = prepare(Lowered(captured, self.program), weights=weights_of, device=CPU)
        self.stage, self.groups, self.runtime = prepared.stage, prepared.groups, prepared.runtime
        self.runtime.observe = observe
        self.place = self.program.places[self.groups.rank]
        self.seen: dict[str, Tensor] = {}
        self.engine = ENGINES[case.engine](case, self.stage, self.groups, self.seen)

    def step(self, batch: Batch) -> float:
        """One step on this copy's share of a global batch; the loss of the whole."""
        return self.runtime.step(self._micro_batches(batch), self.engine)

    def _micro_batches(self, batch: Batch) -> Iterator[Batch]:
        samples, count = self.program.samples, self.program.micro_batches
        for index in range(self.place.data * count, (self.place.data + 1) * count):
            yield {name: value[index * samples : (index + 1) * samples] for name, value in batch.items()}

    def dense(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors of the stage's own parameters, from the parts of the ranks that share them."""
        found = {}
        for name in self.stage.trained:
            pieces: list[Tensor] = [parts[name]]
            if self.groups.tensor is not None:
                pieces *= self.case.layout.tp
                dist.all_gather_object(pieces, parts[name], group=self.groups.tensor)
            found[name] = join(pieces, self.program.pieces[self.place.stage].parameters[name])
        return found


def torch_engine(case: Case, stage: StageModule, groups: Groups, seen: dict[str, Tensor]) -> Engine:
    """``seen`` is filled with the gradients that the optimizer gets: averaged and clipped."""
    if not stage.trained:
        return TorchEngine(stage, groups, torch.optim.SGD([torch.zeros(0)]), case.clip_norm)
    optimizer = optimizer_of(case, list(stage.trained.values()))

    def look(*_: object) -> None:
        seen.update({name: parameter.grad.clone() for name, parameter in stage.trained.items()})

    optimizer.register_step_pre_hook(look)
    return TorchEngine(stage, groups, optimizer, case.clip_norm)


# An engine is made from the case, the stage, its groups and the dict that it fills with the gradients it applies.
ENGINES: dict[str, Callable[[Case, StageModule, Groups, dict[str, Tensor]], Engine]] = {"torch": torch_engine}


@cache
def capture(model: str, dtype: str | None) -> Captured:
    kind = MODELS[model]
    example = kind.batch(kind.samples, torch.Generator(), False)
    return capture_module(kind.build, example, name=model, dtype=getattr(torch, dtype) if dtype else None)


def dense_model(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[case.model].build()
    return model.to(getattr(torch, case.dtype)) if case.dtype else model


def global_batch(case: Case, step: int) -> Batch:
    kind, layout = MODELS[case.model], case.layout
    samples = layout.dp * layout.micro_batches * kind.samples
    return kind.batch(samples, torch.Generator().manual_seed(step), case.padded)


def train(case: Case) -> Outcome:
    """Train both for some steps on the same batches."""
    model = dense_model(case)
    dense = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = optimizer_of(case, list(dense.values()))
    tasks: list[Task] = []
    part = Part(case, model.state_dict(), tasks.append)
    outcome = Outcome(part.place.stage, part.place.tensor, list(dense), queue=part.runtime.queue)
    outcome.shared = {name: [] for name in part.program.shared if name in part.stage.parameters_by_name}
    for step in range(case.steps):
        batch = global_batch(case, step)
        outcome.losses.append(part.step(batch))
        loss = model(**batch)
        loss.backward()
        outcome.dense_losses.append(loss.item())
        norm = nn.utils.clip_grad_norm_(dense.values(), case.clip_norm or float("inf"))
        if step == 0:
            outcome.tasks, outcome.dense_norm = list(tasks), float(norm)
            for name, gradient in part.dense(part.seen).items():
                wanted = dense[name].grad
                outcome.gradients[name] = float((gradient - wanted).norm()), float(wanted.norm())
                outcome.values[name] = gradient.flatten().tolist() if gradient.numel() < 10 else []
        optimizer.step()
        optimizer.zero_grad()
        for name, states in outcome.shared.items():
            held = part.stage.parameters_by_name[name].detach()
            states.append(held.flatten().view(torch.uint8).numpy().tobytes())
    for name, weight in part.dense({n: p.detach() for n, p in part.stage.trained.items()}).items():
        outcome.weights[name] = float((weight - dense[name].detach()).abs().max())
    return outcome


def gradients_of_both(case: Case, other: Case) -> tuple[list[float], dict[str, float]]:
    """Losses of one step of two cases from the same weights, and the largest difference of each gradient of theirs."""
    weights = dense_model(case).state_dict()
    losses, gradients = [], []
    for this in (case, other):
        part = Part(this, weights)
        losses.append(part.step(global_batch(this, 0)))
        gradients.append(part.dense(part.seen))
    assert gradients[0].keys() == gradients[1].keys()
    return losses, {name: float((gradients[0][name] - gradients[1][name]).abs().max()) for name in gradients[0]}
