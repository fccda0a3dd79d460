"""A program on virtual devices beside one device: equal, or what differs first.

Losses, every gradient and the parameters after some steps of Adam, in float64, from drawn batches. One device is the
plain module; where the model drops at random it is the captured graph on one device, which is itself held against the
module with nothing dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from partita.adapters.torch.prepare import Lowered
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import StateDict
from partita.adapters.verify.batch import Batches, Example, wide
from partita.adapters.verify.compare import Errors, compare
from partita.adapters.verify.exact import float64_by_default
from partita.adapters.verify.locate import Difference, Watch, first_op, first_part, last_readers
from partita.adapters.verify.masks import Undropped, random_ops, share_draws
from partita.adapters.verify.one_device import Training, build, train
from partita.adapters.verify.rehearsal import Rehearsal, rehearse
from partita.errors import ModelError
from partita.plan import BATCH_CUT, UNPREDICTED, Order, Plan, Search, Stage, Strategy
from partita.plugins.capture_torch import Captured
from partita.spacetime.lower import lower

STEPS = 3


@dataclass(frozen=True)
class Verdict:
    """What was compared and how far it is off. ``sent`` and ``shared`` are the bytes of each device in messages and in
    collectives; ``layers`` are the model's blocks, and those that the plan's devices run."""

    equal: bool
    errors: Errors
    steps: int
    model_layers: int
    plan_layers: int
    devices: int
    sent: Mapping[int, int]
    shared: Mapping[int, int]
    difference: Difference | None
    losses: tuple[float, ...]


def verify_program(
    lowered: Lowered, factory: Callable[[], nn.Module], example: Example, *, steps: int = STEPS, seed: int = 0
) -> Verdict:
    """Run a program beside one device.

    The model must be captured in float64; ``factory`` builds it, whole, and ``example(samples)`` gives its arguments.
    PlanError where the devices wait for each other for ever or a task fails; ModelError for random ops that can't be
    compared.
    """
    with float64_by_default():
        return _Trial(lowered, factory, example, steps, seed).verdict()


class _Trial:
    """One comparison, with all that both sides need."""

    def __init__(self, lowered: Lowered, factory: Callable[[], nn.Module], example: Example, steps: int, seed: int):
        self.lowered, self.captured, self.program = lowered, lowered.captured, lowered.program
        self.factory, self.seed = factory, seed
        self.drops = bool(random_ops(self.program))
        self.samples = self.program.global_batch
        self.batches = Batches(self.captured, wide(example), self.samples, seed)
        self.steps = [self.batches.batch(step) for step in range(steps)]
        model = build(factory, seed)
        self.weights = StateDict(
            {name: value.detach().clone() for name, value in model.named_parameters()}, self.captured.graph.aliases
        )

    def verdict(self) -> Verdict:
        wanted = self._one_device()
        found = rehearse(self.lowered, self.weights, self.batches, self.steps, self.seed, self._prepared(self.lowered))
        errors = compare(self.program, found, wanted)
        graph = self.captured.graph
        layers = sum(len(piece.segments) for piece in self.program.pieces)
        return Verdict(
            errors.equal, errors, len(self.steps), len(graph.blocks), layers, len(self.program.places), found.sent,
            found.shared, None if errors.equal else self._first(errors), tuple(wanted.losses),
        )  # fmt: skip

    def _prepared(self, lowered: Lowered, drop: bool = True) -> Callable[[int, Mapping[int, StageModule]], None] | None:
        if not self.drops:
            return None
        return lambda device, stages: share_draws(lowered.program, lowered.graphs, stages, drop)

    def _one_device(self) -> Training:
        if not self.drops:
            return train(build(self.factory, self.seed), self.captured, self.steps)
        alone = one_device(self.captured, self.samples)
        self._require_graph(alone)
        return _training(self._alone(alone, self._prepared(alone)))

    def _alone(self, alone: Lowered, prepare: Any, steps: Sequence[Mapping[str, Any]] | None = None) -> Rehearsal:
        return rehearse(alone, self.weights, self.batches, self.steps if steps is None else steps, self.seed, prepare)

    def _require_graph(self, alone: Lowered) -> None:
        """ModelError unless the graph on one device computes what the module computes, with nothing dropped."""
        with Undropped():
            wanted = train(build(self.factory, self.seed), self.captured, self.steps[:1])
        errors = compare(alone.program, self._alone(alone, self._prepared(alone, drop=False), self.steps[:1]), wanted)
        if not errors.equal:
            raise ModelError(
                f'the captured graph of "{self.captured.graph.name}" is not the model: on one device, with nothing '
                f"dropped, its loss is off by {errors.loss:.3g}, a gradient by {errors.largest('gradient'):.3g}"
            )

    def _first(self, errors: Errors) -> Difference | None:
        """What differs first: an op in the forward pass of the first step, else a gradient or a parameter."""
        graph, first = self.captured.graph, self.steps[:1]
        first_alone, *others = (one_device(found, self.samples) for found in (self.captured, *self.lowered.others))
        if not self.drops:
            self._require_graph(first_alone)
        wanted = {}
        for alone in (first_alone, *others):
            watch = wanted[alone.captured.graph.samples] = Watch(alone.program, self._prepared(alone))
            self._alone(alone, watch, first)
        found = Watch(self.program, self._prepared(self.lowered))
        self._alone(self.lowered, found, first)
        return first_op(self.lowered.graphs, self.program, found, wanted) or first_part(
            self.program, errors, last_readers(graph)
        )


def one_device(captured: Captured, samples: int) -> Lowered:
    """The model as a program for one device, at the captured micro-batch."""
    graph = captured.graph
    count = samples // graph.samples
    blocks = tuple(block.name for block in graph.blocks)
    stage = Stage(
        "all", blocks, (0,), 1, 1, graph.samples, count, tuple(Strategy((BATCH_CUT,), 0, "none") for _ in blocks)
    )
    plan = Plan(
        model=graph.name, problem="", cluster="cpu", target="partita", precision="fp64", optimizer="adam",
        seq=graph.seq, global_batch=samples, schedule="1f1b", order=Order("1f1b", 1, count), stages=(stage,),
        shared_parameters=(), predicted=UNPREDICTED, reasons=(),
        search=Search("by hand", False, 0, 0),
    )  # fmt: skip
    return Lowered(captured, lower(graph, plan))


def _training(alone: Rehearsal) -> Training:
    """What one device has at the end."""
    ((held,),) = (tuple(alone.held.values()),)
    gradients: list[dict[str, Tensor]] = held.gradients[0]
    return Training(held.losses, gradients, held.parameters[0])
