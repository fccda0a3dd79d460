"""Execute one rank's queue: exactly the tasks of the program, in their order.

Receives are posted ahead of the compute that needs them, sends don't wait, values and gradients travel in groups of
their own, and between two ranks each direction keeps the order of the queue: the communication model under which the
program's order is free of deadlock. How gradients are computed, averaged and applied is the ``Engine``'s business, so
that DeepSpeed's engine and plain torch run the same queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.begin import Batch, Beginning
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.stage import StageModule
from partita.spacetime.program import Program, Task


class Engine(Protocol):
    """How a framework runs a stage's code and what it does with the gradients.

    ``averages`` says that ``reduce`` divides by the number of data-parallel copies.
    """

    averages: bool

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...]) -> dict[str, Tensor]:
        """The stage's outputs by name."""

    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Back-propagate from outputs with their gradients (None: a scalar, gradient 1) into the parameters."""

    def reduce(self) -> None:
        """Add up (or average) the gradients over the data-parallel copies."""

    def update(self) -> None:
        """Apply the optimizer once."""


class Runtime:
    """One rank of a program. ``step`` takes this copy's micro-batches and returns the loss of the global batch."""

    def __init__(
        self,
        program: Program,
        stage: StageModule,
        groups: Groups,
        *,
        device: torch.device,
        seed: int = 0,
        observe: Callable[[Task], None] | None = None,
    ):
        self.program = program
        self.stage = stage
        self.groups = groups
        self.device = device
        self.seed = seed
        self.observe = observe
        self.queue = program.queues[groups.rank]
        self.place = program.places[groups.rank]
        self.steps = 0
        self.beginning = Beginning(program, stage, groups, device)

    def step(self, batches: Iterator[Batch], engine: Engine) -> float:
        """Run the queue once. ``batches`` yields ``program.micro_batches`` dicts of the model's inputs.

        InputError, the same one on every rank, when a batch of any of them doesn't fit or no label counts.
        """
        micro, scale = self.beginning.take(batches)
        state = _Step(self, micro, scale, engine)
        for index, task in enumerate(self.queue):
            state.post_receives(index)
            if self.observe:
                self.observe(task)
            getattr(state, task.kind)(task)
        state.finish()
        self.steps += 1
        return self._total(state.loss)

    def _total(self, loss: Tensor) -> float:
        """The loss of the global batch, the same on every rank."""
        total = loss if self.place.tensor == 0 else torch.zeros_like(loss)
        dist.all_reduce(total, group=self.groups.values)
        return float(total)


class _Step:
    """The state of one step: values and gradients in flight, pending sends, posted receives."""

    def __init__(self, runtime: Runtime, micro: Sequence[dict[str, Tensor]], scale: float, engine: Engine):
        self.runtime = runtime
        self.micro = micro
        self.scale = scale
        self.engine = engine
        self.values: dict[str, Tensor] = {}
        self.saved: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
        self.received: dict[int, tuple[Any, Tensor]] = {}
        self.pending: list[tuple[Any, Tensor]] = []
        self.posted = 0
        # Summed on the device: reading it for each micro-batch would make the queue wait.
        self.loss = torch.zeros((), dtype=torch.float64, device=runtime.device)
        # An engine that averages over copies undoes this factor: each loss counts its share of the global batch.
        self.copies = runtime.program.dp[runtime.place.stage] if engine.averages else 1

    def post_receives(self, index: int) -> None:
        """Post the receives of this task and of what follows, as far as ``ahead`` looks."""
        end = ahead(self.runtime.queue, index)
        for position in range(self.posted, end):
            task = self.runtime.queue[position]
            if task.kind == "receive":
                edge = task.transfer
                assert edge is not None
                assert task.peer is not None
                buffer = torch.empty(
                    self._wire_shape(task), dtype=getattr(torch, edge.dtype), device=self.runtime.device
                )
                self.received[position] = (dist.irecv(buffer, task.peer, group=self._group(task)), buffer)
        self.posted = max(self.posted, end)
        self.position = index

    def receive(self, task: Task) -> None:
        work, buffer = self.received.pop(self.position)
        work.wait()
        edge = task.transfer
        assert edge is not None
        if edge.what == "parameter_gradient":
            self.engine.backward([self._parameter(edge.tensor)], [buffer])
        elif edge.what == "parameter":
            with torch.no_grad():
                self._parameter(edge.tensor).copy_(buffer)
        else:
            self.values[task.writes[0]] = buffer

    def send(self, task: Task) -> None:
        edge = task.transfer
        assert edge is not None
        assert task.peer is not None
        if edge.what == "parameter":
            value = self._parameter(edge.tensor).detach()
        elif edge.what == "parameter_gradient":
            parameter = self._parameter(edge.tensor)
            value = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = None
        elif edge.what == "gradient":
            value = self.values.pop(task.reads[0])
        else:
            value = self.values[task.reads[0]].detach()
        value = value.to(getattr(torch, edge.dtype)).contiguous()
        self.pending.append((dist.isend(value, task.peer, group=self._group(task)), value))
        self.pending = [(work, held) for work, held in self.pending if not work.is_completed()]

    def forward(self, task: Task) -> None:
        stage, micro = self.runtime.stage, task.micro
        assert micro is not None
        inputs = {}
        for name in stage.piece.inputs:
            value = self.values.pop(f"{name}@{micro}")
            inputs[name] = value.requires_grad_() if name in stage.differentiable else value
        key = (
            self.runtime.seed, self.runtime.steps,
            self.runtime.place.data * self.runtime.program.micro_batches + micro,
        )  # fmt: skip
        outputs = self.engine.forward(self.micro[micro], inputs, key)
        self.saved[micro] = (inputs, outputs)
        loss = self.runtime.program.loss
        for name, value in outputs.items():
            if loss is not None and name == loss.tensor:
                self.loss += value.detach().double() * self.scale
            else:
                self.values[f"{name}@{micro}"] = value

    def backward(self, task: Task) -> None:
        micro = task.micro
        assert micro is not None
        inputs, outputs = self.saved.pop(micro)
        loss = self.runtime.program.loss
        roots: list[Tensor] = []
        gradients: list[Tensor | None] = []
        arrived: dict[str, Tensor] = {}
        for edge in task.gradients:
            if edge.target == task.stage:
                gradient = self.values.pop(edge.key(micro))
                arrived[edge.tensor] = arrived[edge.tensor] + gradient if edge.tensor in arrived else gradient
        for name, value in outputs.items():
            if loss is not None and name == loss.tensor:
                roots.append(value * (self.scale * self.copies))
                gradients.append(None)
            elif name in arrived and value.requires_grad:
                # Not so where the value was made from another's shape alone (zeros_like): its gradient ends here.
                roots.append(value)
                gradients.append(arrived[name])
            self.values.pop(f"{name}@{micro}", None)
        if roots:
            self.engine.backward(roots, gradients)
        for edge in task.gradients:
            if edge.source == task.stage:
                leaf = inputs[edge.tensor]
                self.values[edge.key(micro)] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def reduce(self, task: Task) -> None:
        self.engine.reduce()

    def update(self, task: Task) -> None:
        self.engine.update()

    def finish(self) -> None:
        for work, _ in self.pending:
            work.wait()

    def _parameter(self, name: str) -> Tensor:
        return self.runtime.stage.parameters_by_name[name]

    def _wire_shape(self, task: Task) -> tuple[int, ...]:
        edge = task.transfer
        assert edge is not None
        flipped = edge.what.startswith("parameter") and edge.tensor in self.runtime.stage.flipped
        return edge.shape[::-1] if flipped else edge.shape

    def _group(self, task: Task) -> dist.ProcessGroup:
        assert task.transfer is not None
        return self.runtime.groups.gradients if task.transfer.backwards else self.runtime.groups.values


def ahead(queue: Sequence[Task], index: int) -> int:
    """Where the tasks end whose receives are posted when task ``index`` begins: after the second compute from there.

    No further: what is posted has its memory, and a schedule bounds how many micro-batches a device holds.
    """
    computes = (place for place in range(index, len(queue)) if queue[place].kind in ("forward", "backward"))
    return next(islice(computes, 1, None), len(queue) - 1) + 1
