"""The memory of a device over a step, counted from its queue and the times of its tasks.

State and the framework's own are there from the first second to the last. A micro-batch's activations exist from the
start of its forward turn to the end of its last turn (backward, or weight gradients that were put off), those of a
stage without backward turns while its forward turn runs; temporary tensors exist while a backward turn runs. *Buffers*
are what the program itself holds: a value from when its receive is posted until the forward turn takes it in, an output
and an arrived gradient until the backward turn has used it, a gradient to be sent until it has been. The prediction of
a plan counts all of these but the buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from partita.plan import MemoryBytes
from partita.simulate.engine import Timing
from partita.spacetime.program import Task, Transfer


@dataclass(frozen=True)
class Moment:
    """Bytes of what changes, from this second on."""

    seconds: float
    activations: int
    temporary: int
    buffers: int

    @property
    def total(self) -> int:
        return self.activations + self.temporary + self.buffers


@dataclass(frozen=True)
class Peak:
    """The first moment at which a device holds most, and all that it holds then."""

    seconds: float
    memory: MemoryBytes
    buffers: int

    @property
    def total(self) -> int:
        return self.memory.total + self.buffers

    def items(self) -> dict[str, int]:
        """The items by name."""
        return {**self.memory.items(), "buffers": self.buffers}


def held_by(stages: Sequence[MemoryBytes]) -> MemoryBytes:
    """What a device holds all the time, from the memory of each stage that it serves. One turn runs at a time."""
    return MemoryBytes(
        parameters=sum(stage.parameters for stage in stages), gradients=sum(stage.gradients for stage in stages),
        optimizer=sum(stage.optimizer for stage in stages), activations=0, temporary=0,
        framework=max(stage.framework for stage in stages),
    )  # fmt: skip


def timeline(
    queue: Sequence[Task], timing: Timing, memory: Sequence[MemoryBytes], size_bytes: Callable[[Transfer], float]
) -> Iterator[Moment]:
    """What changes on a device, moment after moment; ``memory[stage]`` has the activations of one micro-batch."""
    activations = temporary = buffers = 0
    yield Moment(0.0, 0, 0, 0)
    # Stable: at one moment, what is freed by an earlier task goes before what a later one takes.
    changes = sorted(_changes(queue, timing, memory, size_bytes), key=lambda change: change[0])
    for seconds, held, used, buffered in changes:
        activations, temporary, buffers = activations + held, temporary + used, buffers + buffered
        yield Moment(seconds, activations, temporary, buffers)


def peak(moments: Iterator[Moment], memory: MemoryBytes) -> Peak:
    """Where a timeline is highest."""
    top = max(moments, key=lambda moment: moment.total)
    held = {**memory.items(), "activations": top.activations, "temporary": top.temporary}
    return Peak(top.seconds, MemoryBytes(**held), top.buffers)


def _changes(
    queue: Sequence[Task], timing: Timing, memory: Sequence[MemoryBytes], size_bytes: Callable[[Transfer], float]
) -> Iterator[tuple[float, int, int, int]]:
    """(seconds, activations, temporary, buffers) of every change, task after task."""
    # Names that are in a buffer where the walk stands. A value that a forward turn took in is an activation.
    buffered: dict[str, int] = {}
    # By name and stage that reads it: what goes in parts is as large as all of them.
    sent: dict[str, dict[int, set[Transfer]]] = {}
    for task in queue:
        if task.kind == "send" and task.transfer is not None:
            sent.setdefault(task.reads[0], {}).setdefault(task.transfer.target, set()).add(task.transfer)
    phases = {(task.kind, task.stage) for task in queue}

    def size(transfer: Transfer) -> int:
        return ceil(size_bytes(transfer))

    def put(names: Iterable[str]) -> int:
        added = {name: max((sum(map(size, of)) for of in sent.get(name, {}).values()), default=0) for name in names}
        buffered.update(added)
        return sum(added.values())

    def drop(names: Iterable[str]) -> int:
        return sum(buffered.pop(name, 0) for name in names)

    for position, task in enumerate(queue):
        start, end = timing.starts[position], timing.ends[position]
        stage = memory[task.stage]
        if task.kind == "forward":
            kept = ("backward", task.stage) in phases
            yield start, stage.activations, 0, -drop(name for name in task.reads if name in task.frees or kept)
            yield end, 0 if kept else -stage.activations, 0, put(task.writes) - drop(task.frees)
        elif task.kind == "backward":
            yield start, 0, stage.temporary, 0
            freed = drop(task.frees)
            over = 0 if ("weight", task.stage) in phases else stage.activations
            yield end, -over, -stage.temporary, put(task.writes) - freed
        elif task.kind == "weight":
            yield end, -stage.activations, 0, 0
        elif task.kind == "receive":
            assert task.transfer is not None
            buffered[task.writes[0]] = size(task.transfer)
            yield timing.issued[position], 0, 0, buffered[task.writes[0]]
            if task.transfer.what.startswith("parameter"):
                yield end, 0, 0, -drop(task.writes)
        elif task.kind == "join":
            joined = sum(buffered.get(name, 0) for name in task.reads)
            buffered[task.writes[0]] = joined
            yield start, 0, 0, joined
            yield end, 0, 0, -drop(task.frees)
        elif task.frees:
            yield end, 0, 0, -drop(task.frees)
