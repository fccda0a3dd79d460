"""What a rank does in the parity tests: train its part of a program and the whole model beside it, and compare.

Every rank trains the dense model itself, so that no rank's part is compared with what another rank sent. Parts are put
together by ``join`` before they are compared, so that where a part belongs is tested too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor, nn

from partita.adapters.torch.prepare import Lowered
from partita.adapters.torch.weights import StateDict, join
from partita.errors import InputError
from partita.plugins.capture_torch import Captured, capture_module
from partita.spacetime.lower import lower
from partita.spacetime.program import Task
from tests.runtime.engines import ENGINES, TARGETS, Case, optimizer_of, whole_parameter
from tests.runtime.models import MODELS, Batch, micro_batches
from tests.runtime.programs import plan

PRECISIONS = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", None: "fp32"}


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


class Part:
    """One rank's part of a case: stage, engine and runtime, and the gradients that its optimizer saw last."""

    def __init__(self, case: Case, weights: dict[str, Tensor], observe: Callable[[Task], None] | None = None):
        captured = capture(case.model, case.dtype)
        self.case = case
        self.seen: dict[str, Tensor] = {}
        by_hand = plan(captured.graph, case.layout, PRECISIONS[case.dtype])
        by_hand = replace(by_hand, target=TARGETS[case.engine])
        built = ENGINES[case.engine](
            case, by_hand, Lowered(captured, lower(captured.graph, by_hand)),
            StateDict(weights, captured.graph.aliases), self.seen,
        )  # fmt: skip
        self.engine, self.stage = built.engine, built.stage
        self.groups, self.runtime = built.groups, built.runtime
        self.train_batch, self.weights = built.train_batch, built.weights
        self.runtime.observe = observe
        self.program, self.place = self.runtime.program, self.runtime.place

    def step(self, batch: Batch) -> float:
        """One step on this copy's share of a global batch; the loss of the whole."""
        return self.train_batch(self.micro_batches(batch))

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        return micro_batches(batch, self.program.share(self.groups.rank), self.place.data)

    def dense(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors of the stage's own parameters, from the parts of the ranks that share them."""
        found = {}
        for name in self.stage.trained:
            shard, pieces = self.program.pieces[self.place.stage].parameters[name], [parts[name]]
            if shard and (group := self.groups.axes[self.place.stage].get(shard.axis)):
                pieces = group.objects(parts[name])
            found[name] = join(pieces, shard)
        return found


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
            held = whole_parameter(part.stage, name)
            states.append(held.flatten().view(torch.uint8).numpy().tobytes())
    for name, weight in part.dense(part.weights()).items():
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


def generators_around_a_step(case: Case) -> tuple[bytes, bytes]:
    """The state of torch's random generator before and after one step."""
    part = Part(case, dense_model(case).state_dict())
    batch = global_batch(case, 0)
    torch.manual_seed(5)
    before = torch.get_rng_state().numpy().tobytes()
    part.step(batch)
    return before, torch.get_rng_state().numpy().tobytes()


def refusal(case: Case, given: list[Batch]) -> str:
    """What the runtime says to a step with these micro-batches."""
    part = Part(case, dense_model(case).state_dict())
    try:
        part.train_batch(iter(given))
    except InputError as error:
        return str(error)
    return ""
