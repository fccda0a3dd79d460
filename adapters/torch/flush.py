"""Execute one rank's queue: exactly the tasks of the program, in their order.

Receives are posted ahead of the compute that needs them, sends don't wait, values and gradients travel in groups of
their own, and between two ranks each direction keeps the order of the queue: the communication model under which the
program's order is free of deadlock. How gradients are computed, averaged and applied is the ``Engine``'s business, so
that DeepSpeed's engine and plain torch run the same queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from partita.adapters.torch.begin import Batch
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.put_off import PutOff
from partita.adapters.torch.stage import Code, StageModule
from partita.errors import PlanError
from partita.spacetime.communication import ahead
from partita.spacetime.program import Program, Task, made, saved
from partita.spacetime.prove_order import named


class Engine(Protocol):
    """How a framework runs a stage's code and what it does with the gradients.

    ``averages`` says that ``reduce`` divides by the number of data-parallel copies. Where a device serves several
    stages, ``reduce`` and ``update`` come once for each, all reductions before the first update.
    """

    averages: bool

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        """The stage's outputs by name."""

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        """Back-propagate from outputs with their gradients (None: a scalar, gradient 1) into the parameters, and into
        ``leaves``, the values that came from other stages."""

    def reduce(self, stage: int) -> None:
        """Add up (or average) the stage's gradients over its data-parallel copies."""

    def update(self, stage: int) -> None:
        """Apply the optimizer once to the stage's parameters."""


class Rank(Protocol):
    """What a flush needs to know of the rank that it runs on."""

    program: Program
    stages: Mapping[int, StageModule]
    groups: Groups
    device: torch.device
    seed: int
    steps: int
    observe: Callable[[Task], None] | None


class Flush:
    """One run through turns: values and gradients in flight, pending sends, posted receives.

    ``micro`` are the micro-batches; ``scales[m]`` is what the loss of micro-batch m counts for, ``codes[stage][m]``
    what it runs (default: the stage's own). Of a model without a loss ``results[m]`` keeps what it returns, and
    ``seeds`` may give gradients for that by (name, micro-batch). Random draws are keyed by ``draw``, and by
    ``first`` + m; by default by which run of the stage's samples of the global batch it is.
    """

    def __init__(
        self,
        rank: Rank,
        engine: Engine,
        micro: Sequence[Batch],
        scales: Sequence[float],
        codes: Mapping[int, Sequence[Code]] | None = None,
        *,
        draw: int | None = None,
        first: int | None = None,
    ):
        self.rank = rank
        self.engine = engine
        self.micro = micro
        self.scales = scales
        self.codes = codes or {stage: [module.code] * len(micro) for stage, module in rank.stages.items()}
        self.draw = rank.steps if draw is None else draw
        self.first = first
        self.results: dict[int, dict[str, Tensor]] = {index: {} for index in range(len(micro))}
        self.seeds: dict[tuple[str, int], Tensor] = {}
        self.values: dict[str, Tensor] = {}
        # By stage and micro-batch: what its forward turn read and made; what its backward turn put off.
        self.saved: dict[tuple[int, int], tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
        self.put_off: dict[tuple[int, int], PutOff] = {}
        self.received: dict[int, tuple[Any, Tensor]] = {}
        self.pending: list[tuple[Any, Tensor]] = []
        # Summed on the device: reading it for each micro-batch would make the queue wait.
        self.loss = torch.zeros((), dtype=torch.float64, device=rank.device)

    def run(self, queue: Sequence[Task]) -> None:
        """Carry out the tasks in their order. May be called again, with the tasks that follow."""
        self.queue, self.posted = queue, 0
        self.puts_off = {task.stage for task in queue if task.kind == "weight"}
        for self.position, task in enumerate(queue):
            self._post_receives()
            if self.rank.observe:
                self.rank.observe(task)
            try:
                getattr(self, f"_{task.kind}")(task)
            except Exception as error:
                # Where a peer is gone, what its transport says names neither the peer nor what was waited for.
                error.add_note(self._where(task))
                raise
            for name in task.frees:
                self.values.pop(name, None)
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()

    def _where(self, task: Task) -> str:
        peer = "" if task.peer is None else f" {'to' if task.kind == 'send' else 'from'} rank {task.peer}"
        return f"rank {self.rank.groups.rank}, stage {task.stage}: in {named(task)}{peer}"

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
                work = self.rank.groups.line.receive(buffer, task.peer, edge.backwards)
                self.received[position] = (work, buffer)
        self.posted = max(self.posted, end)

    def _receive(self, task: Task) -> None:
        work, buffer = self.received.pop(self.position)
        work.wait()
        edge = task.transfer
        assert edge is not None
        if edge.what == "parameter_gradient":
            self.engine.backward([self._leaf(task)], [buffer])
        elif edge.what == "parameter":
            with torch.no_grad():
                self._parameter(task).copy_(buffer)
        else:
            self.values[task.writes[0]] = buffer

    def _send(self, task: Task) -> None:
        edge = task.transfer
        assert edge is not None
        assert task.peer is not None
        if edge.what == "parameter":
            value = self._parameter(task).detach()
        elif edge.what == "parameter_gradient":
            parameter = self._leaf(task)
            value = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if task.frees:
                parameter.grad = None
        elif edge.what == "gradient":
            value = self.values[task.reads[0]]
        else:
            value = self.values[task.reads[0]].detach()
        if edge.samples is not None:
            value = self._rows(value, task)
        if value.shape != (wanted := self._wire_shape(task)):
            raise PlanError(
                f"{named(task)} to rank {task.peer}: what stage {task.stage} made has shape {list(value.shape)}, the "
                f"plan was lowered for {list(wanted)}; a plan must be lowered for the model that runs"
            )
        value = value.to(getattr(torch, edge.dtype)).contiguous()
        self.pending.append((self.rank.groups.line.send(value, task.peer, edge.backwards), value))
        self.pending = [(work, held) for work, held in self.pending if not work.is_completed()]

    def _forward(self, task: Task) -> None:
        micro = task.micro
        assert micro is not None
        stage, trains = task.stage, saved(task.stage, micro) in task.writes
        code = self.codes[stage][micro]
        inputs = {}
        for name, key in zip(code.piece.inputs, task.reads, strict=True):
            # A value of the device's own stays: other stages may read it too.
            own = key == made(name, micro) and key not in task.frees
            value = (self.values[key] if own else self.values.pop(key)).detach()
            inputs[name] = value.requires_grad_() if trains and name in code.differentiable else value
        rank = self.rank
        if stage in self.puts_off:
            rank.stages[stage].put_off = self.put_off[stage, micro] = []
        with torch.set_grad_enabled(torch.is_grad_enabled() and trains):
            key = (rank.seed, self.draw, self._number(stage, micro))
            outputs = self.engine.forward(self.micro[micro], inputs, key, code)
        rank.stages[stage].put_off = None
        if trains:
            self.saved[stage, micro] = (inputs, outputs)
        for name, value in outputs.items():
            if name in code.returned:
                self.results[micro][name] = value.detach()
            if name == code.loss:
                self.loss += value.detach().double() * self.scales[micro]
            else:
                self.values[made(name, micro)] = value

    def _number(self, stage: int, micro: int) -> int:
        """What random draws of a micro-batch are keyed by."""
        if self.first is not None:
            return self.first + micro
        program, device = self.rank.program, self.rank.groups.rank
        return program.shares[stage].number(program.place(device, stage).data, micro)

    def _join(self, task: Task) -> None:
        parts = [self.values[name] for name in task.reads]
        self.values[task.writes[0]] = parts[0] if len(parts) == 1 else torch.cat(parts)

    def _backward(self, task: Task) -> None:
        micro = task.micro
        assert micro is not None
        inputs, outputs = self.saved.pop((task.stage, micro))
        code = self.codes[task.stage][micro]
        # An engine that averages over copies undoes this factor: each loss counts its share of the global batch.
        copies = self.rank.program.dp[task.stage] if self.engine.averages else 1
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
            if name == code.loss:
                roots.append(value * (self.scales[micro] * copies))
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
            self.values[edge.sent(micro)] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def _weight(self, task: Task) -> None:
        assert task.micro is not None
        for compute in self.put_off.pop((task.stage, task.micro)):
            compute()

    def _reduce(self, task: Task) -> None:
        self.engine.reduce(task.stage)

    def _update(self, task: Task) -> None:
        self.engine.update(task.stage)

    def _parameter(self, task: Task) -> Tensor:
        assert task.transfer is not None
        return self.rank.stages[task.stage].parameters_by_name[task.transfer.tensor]

    def _leaf(self, task: Task) -> Tensor:
        """What a parameter's gradient adds up in: itself, or with ZeRO 2 and 3 the device's chunk of it."""
        assert task.transfer is not None
        divided = self.rank.stages[task.stage].divided(task.transfer.tensor)
        return self._parameter(task) if divided is None else divided.leaf

    def _rows(self, value: Tensor, task: Task) -> Tensor:
        """The rows of a whole value, or of its gradient, that a message of some samples has."""
        assert task.transfer is not None
        assert task.transfer.samples is not None
        assert task.micro is not None
        first, last = task.transfer.samples
        start, stop = self.rank.program.interval(self.rank.groups.rank, task.stage, task.micro)
        if (first, last) == (start, stop):
            return value
        each = task.transfer.shape[0] // (last - first)
        return value[(first - start) * each : (last - start) * each]

    def _wire_shape(self, task: Task) -> tuple[int, ...]:
        edge = task.transfer
        assert edge is not None
        if edge.what.startswith("parameter") and self.rank.stages[task.stage].divided(edge.tensor):
            # The owner and its copy have the same chunk: each sends what it has.
            return tuple((self._parameter(task) if edge.what == "parameter" else self._leaf(task)).shape)
        flipped = edge.what.startswith("parameter") and edge.tensor in self.rank.stages[task.stage].flipped
        return edge.shape[::-1] if flipped else edge.shape
