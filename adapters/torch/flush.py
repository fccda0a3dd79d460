"""Execute one rank's queue: exactly the tasks of the program, in their order.

Receives are posted ahead of the compute that needs them, sends don't wait, values and gradients travel in groups of
their own, and between two ranks each direction keeps the order of the queue: the communication model under which the
program's order is free of deadlock. How gradients are computed, averaged and applied is the ``Engine``'s business, so
that DeepSpeed's engine and plain torch run the same queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.begin import Batch
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.stage import Code, StageModule
from partita.spacetime.communication import ahead
from partita.spacetime.program import Place, Program, Task, Transfer


class Engine(Protocol):
    """How a framework runs a stage's code and what it does with the gradients.

    ``averages`` says that ``reduce`` divides by the number of data-parallel copies.
    """

    averages: bool

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        """The stage's outputs by name."""

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        """Back-propagate from outputs with their gradients (None: a scalar, gradient 1) into the parameters, and into
        ``leaves``, the values that came from other stages."""

    def reduce(self) -> None:
        """Add up (or average) the gradients over the data-parallel copies."""

    def update(self) -> None:
        """Apply the optimizer once."""


class Rank(Protocol):
    """What a flush needs to know of the rank that it runs on."""

    program: Program
    place: Place
    stage: StageModule
    groups: Groups
    device: torch.device
    seed: int
    steps: int
    observe: Callable[[Task], None] | None


class Flush:
    """One run through turns: values and gradients in flight, pending sends, posted receives.

    ``micro`` are the micro-batches; ``scales[m]`` is what the loss of micro-batch m counts for, ``codes[m]`` what it
    runs (default: the stage's own). Of a model without a loss ``results[m]`` keeps what it returns, and ``seeds`` may
    give gradients for that by (name, micro-batch). Random draws are keyed by ``draw``, and by ``first`` + m.
    """

    def __init__(
        self,
        rank: Rank,
        engine: Engine,
        micro: Sequence[Batch],
        scales: Sequence[float],
        codes: Sequence[Code] | None = None,
        *,
        draw: int | None = None,
        first: int | None = None,
    ):
        self.rank = rank
        self.engine = engine
        self.micro = micro
        self.scales = scales
        self.codes = codes or [rank.stage.code] * len(micro)
        self.draw = rank.steps if draw is None else draw
        self.first = rank.place.data * len(micro) if first is None else first
        self.results: dict[int, dict[str, Tensor]] = {index: {} for index in range(len(micro))}
        self.seeds: dict[tuple[str, int], Tensor] = {}
        self.values: dict[str, Tensor] = {}
        self.saved: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
        self.received: dict[int, tuple[Any, Tensor]] = {}
        self.pending: list[tuple[Any, Tensor]] = []
        # Summed on the device: reading it for each micro-batch would make the queue wait.
        self.loss = torch.zeros((), dtype=torch.float64, device=rank.device)
        # An engine that averages over copies undoes this factor: each loss counts its share of the global batch.
        self.copies = rank.program.dp[rank.place.stage] if engine.averages else 1

    def run(self, queue: Sequence[Task]) -> None:
        """Carry out the tasks in their order. May be called again, with the tasks that follow."""
        self.queue, self.posted = queue, 0
        for self.position, task in enumerate(queue):
            self._post_receives()
            if self.rank.observe:
                self.rank.observe(task)
            getattr(self, f"_{task.kind}")(task)
            for name in task.frees:
                self.values.pop(name, None)
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()

    def _post_receives(self) -> None:
        """Post the receives of this task and of what follows, as far as ``ahead`` looks."""
        end = ahead(self.queue, self.position)
        for position in range(self.posted, end):
            task = self.queue[position]
            if task.kind == "receive":
                edge = task.transfer
                assert edge is not None
                assert task.peer is not None
                buffer = torch.empty(self._wire_shape(task), dtype=getattr(torch, edge.dtype), device=self.rank.device)
                self.received[position] = (dist.irecv(buffer, task.peer, group=self._group(task)), buffer)
        self.posted = max(self.posted, end)

    def _receive(self, task: Task) -> None:
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

    def _send(self, task: Task) -> None:
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
            value = self.values[task.reads[0]]
        else:
            value = self.values[task.reads[0]].detach()
        value = value.to(getattr(torch, edge.dtype)).contiguous()
        self.pending.append((dist.isend(value, task.peer, group=self._group(task)), value))
        self.pending = [(work, held) for work, held in self.pending if not work.is_completed()]

    def _forward(self, task: Task) -> None:
        micro = task.micro
        assert micro is not None
        code = self.codes[micro]
        inputs = {}
        for name in code.piece.inputs:
            value = self.values.pop(f"{name}@{micro}")
            inputs[name] = value.requires_grad_() if name in code.differentiable else value
        rank = self.rank
        key = (rank.seed, self.draw, self.first + micro)
        outputs = self.engine.forward(self.micro[micro], inputs, key, code)
        if f"saved@{micro}" in task.writes:
            self.saved[micro] = (inputs, outputs)
        for name, value in outputs.items():
            if name in code.returned:
                self.results[micro][name] = value.detach()
            if name == code.loss:
                self.loss += value.detach().double() * self.scales[micro]
            else:
                self.values[f"{name}@{micro}"] = value
        if micro not in self.saved:
            # Nothing frees what no other stage reads.
            sent = {edge.tensor for edge in self._leaving(micro)}
            for name in outputs.keys() - sent:
                self.values.pop(f"{name}@{micro}", None)

    def _leaving(self, micro: int) -> Iterator[Transfer]:
        for task in self.queue:
            if task.kind == "send" and task.micro == micro and task.transfer is not None:
                yield task.transfer

    def _backward(self, task: Task) -> None:
        micro = task.micro
        assert micro is not None
        inputs, outputs = self.saved.pop(micro)
        roots: list[Tensor] = []
        gradients: list[Tensor | None] = []
        arrived: dict[str, Tensor] = {
            name: self.seeds.pop((name, micro)) for name, index in list(self.seeds) if index == micro
        }
        for edge in task.gradients:
            if edge.target == task.stage:
                gradient = self.values.pop(edge.key(micro))
                arrived[edge.tensor] = arrived[edge.tensor] + gradient if edge.tensor in arrived else gradient
        for name, value in outputs.items():
            if name == self.codes[micro].loss:
                roots.append(value * (self.scales[micro] * self.copies))
                gradients.append(None)
            elif name in arrived and value.requires_grad:
                # Not so where the value was made from another's shape alone (zeros_like): its gradient ends here.
                roots.append(value)
                gradients.append(arrived[name])
        leaving = [edge for edge in task.gradients if edge.source == task.stage]
        if roots:
            self.engine.backward(roots, gradients, [inputs[edge.tensor] for edge in leaving])
        for edge in leaving:
            leaf = inputs[edge.tensor]
            self.values[edge.key(micro)] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def _reduce(self, task: Task) -> None:
        self.engine.reduce()

    def _update(self, task: Task) -> None:
        self.engine.update()

    def _parameter(self, name: str) -> Tensor:
        return self.rank.stage.parameters_by_name[name]

    def _wire_shape(self, task: Task) -> tuple[int, ...]:
        edge = task.transfer
        assert edge is not None
        flipped = edge.what.startswith("parameter") and edge.tensor in self.rank.stage.flipped
        return edge.shape[::-1] if flipped else edge.shape

    def _group(self, task: Task) -> dist.ProcessGroup:
        assert task.transfer is not None
        return self.rank.groups.gradients if task.transfer.backwards else self.rank.groups.values
