"""Every device's queue does its stage's part of a step: all of it, once, and each thing when what it needs is there.

A device runs each micro-batch forward once and backward once, sends and receives what ``prove_traffic`` says, reads
nothing that isn't there, keeps nothing at the end. Then come the shared parameters: gradients of copies to their
owners, the reduction over data-parallel copies, the update, new values to the copies, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partita.errors import PlanError
from partita.graph import Graph
from partita.spacetime.program import Program, Task, Transfer
from partita.spacetime.prove_order import named
from partita.spacetime.prove_traffic import Traffic, odd_transfer, said, traffic

# The end of a step, in order: what sends and receives of a shared parameter come between.
STEPS = ("turns", "parameter_gradient", "reduce", "update", "parameter")


def prove_queues(graph: Graph, program: Program) -> None:
    """PlanError that names device, task and tensor. Linear in tasks."""
    needed = traffic(graph, program)
    for device in program.queues:
        _Queue(program, device, needed[program.places[device].stage]).prove()
    _streams(program)


class _Queue:
    """What is there and what was done while one device's queue is read."""

    def __init__(self, program: Program, device: int, traffic: Traffic):
        self.program, self.device, self.traffic = program, device, traffic
        self.place = program.places[device]
        self.piece = program.pieces[self.place.stage]
        self.each_micro_batch = traffic.each_micro_batch
        self.there: set[str] = set()
        self.done: Counter[tuple[object, int | None]] = Counter()
        self.step = self.position = 0
        self.task: Task | None = None

    def prove(self) -> None:
        self._all_turns()
        for position, task in enumerate(self.program.queues[self.device]):
            self.position, self.task = position, task
            if task.stage != self.place.stage:
                self._fail(f"is of stage {task.stage}, the device of stage {self.place.stage}")
            if (task.kind in ("send", "receive")) != (task.transfer is not None):
                self._fail("must have a transfer" if task.transfer is None else "must have none")
            self._in_order(task)
            if task.transfer is not None:
                self._transfer(task)
            elif task.kind in ("forward", "backward"):
                self._turn(task)
            self._values(task)
        self._all_done()

    def _fail(self, why: str) -> None:
        raise PlanError(f"{self._where()}: {why}")

    def _where(self) -> str:
        at = f", task {self.position}, {named(self.task)}" if self.task is not None else ""
        return f"device {self.device}{at}"

    def _all_turns(self) -> None:
        turns = {(task.kind, task.micro) for task in self.program.queues[self.device]}
        for micro in range(self.program.micro_batches):
            for kind in ("forward", "backward"):
                if (kind, micro) not in turns:
                    self._fail(f"the {kind} of micro-batch {micro} is missing on stage {self.place.stage}")

    def _in_order(self, task: Task) -> None:
        """Turns and their transfers, gradients of shared parameters, reduce, update, new values."""
        what = task.transfer.what if task.transfer is not None else task.kind
        step = STEPS.index(what) if what in STEPS else 0
        if step < self.step:
            self._fail(f"comes after {STEPS[self.step].replace('_', ' ')} and must come before")
        self.step = step
        if task.micro is None:
            if step == 0:
                self._fail("is for no micro-batch")
        elif not 0 <= task.micro < self.program.micro_batches:
            self._fail(f"is for none of the {self.program.micro_batches} micro-batches")
        key: object = (task.kind, task.transfer) if task.transfer is not None else task.kind
        self.done[key, task.micro] += 1
        if self.done[key, task.micro] > 1:
            self._fail("stands in the queue a second time")

    def _transfer(self, task: Task) -> None:
        edge, stage = task.transfer, self.place.stage
        assert edge is not None
        wanted = self.traffic.parameters if task.micro is None else self.each_micro_batch
        if edge not in wanted:
            raise odd_transfer(edge, wanted, self._where())
        mine, other = (edge.source, edge.target) if task.kind == "send" else (edge.target, edge.source)
        peer = self.program.places.get(task.peer) if task.peer is not None else None
        if mine != stage:
            self._fail(f"the {said(edge)} isn't this stage's to {task.kind}")
        if peer is None or (peer.stage, peer.data, peer.tensor) != (other, self.place.data, self.place.tensor):
            self._fail(
                f"goes to or comes from device {task.peer}, which isn't copy {self.place.data}, part "
                f"{self.place.tensor} of stage {other}"
            )
        moved = (edge.key(task.micro),)
        if (task.reads if task.kind == "send" else task.writes) != moved:
            self._fail(f'is said to move {task.reads or task.writes}, its transfer is of "{moved[0]}"')

    def _turn(self, task: Task) -> None:
        """What a turn reads and writes must be what its piece does."""
        micro, traffic = task.micro, self.traffic
        if task.kind == "forward":
            needs = {f"{name}@{micro}" for name in self.piece.inputs}
            makes = {f"{name}@{micro}" for name in self.piece.outputs} | {f"saved@{micro}"}
        else:
            if set(task.gradients) != traffic.back_in | traffic.back_out:
                odd = set(task.gradients) ^ (traffic.back_in | traffic.back_out)
                edge = min(odd, key=lambda edge: (edge.tensor, edge.source))
                self._fail(f"the {said(edge)} is {'not needed' if edge in task.gradients else 'left out'}")
            needs = {edge.key(micro) for edge in traffic.back_in} | {f"saved@{micro}"}
            makes = {edge.key(micro) for edge in traffic.back_out}
        if absent := sorted(needs - self.there):
            self._fail(f'needs "{absent[0]}", which {self._why_absent(absent[0])}')
        for what, wanted, found in (("reads", needs, set(task.reads)), ("writes", makes, set(task.writes))):
            if odd_names := sorted(wanted ^ found):
                self._fail(
                    f'"{odd_names[0]}" must be among what it {what}, and nothing else: it {what} {sorted(found)}'
                )

    def _why_absent(self, name: str) -> str:
        for task in self.program.queues[self.device]:
            if name in task.writes:
                return f"comes with a later task, or was freed before: {named(task)}"
        return "never arrives"

    def _values(self, task: Task) -> None:
        if task.micro is None:
            return
        for name in task.reads:
            if name not in self.there:
                self._fail(f'needs "{name}", which {self._why_absent(name)}')
        for name in task.writes:
            if name in self.there:
                self._fail(f'"{name}" is there already: it would be overwritten')
            self.there.add(name)
        for name in task.frees:
            if name not in self.there:
                self._fail(f'frees "{name}", which isn\'t there')
            self.there.remove(name)

    def _all_done(self) -> None:
        self.task = None
        for micro in range(self.program.micro_batches):
            self._transfers_done(self.each_micro_batch, micro)
        self._transfers_done(self.traffic.parameters, None)
        for kind, why in (("reduce", "the gradients of copies are never added up"), ("update", "nothing is learnt")):
            if not self.done[kind, None]:
                self._fail(f"{kind} is missing in the queue: {why}")
        if self.there:
            self._fail(f'"{min(self.there)}" is never freed ({len(self.there)} such values)')

    def _transfers_done(self, edges: frozenset[Transfer], micro: int | None) -> None:
        for edge in edges:
            kind = "send" if edge.source == self.place.stage else "receive"
            if not self.done[(kind, edge), micro]:
                at = "" if micro is None else f" of micro-batch {micro}"
                self._fail(f"the {kind} of the {said(edge)}{at} is missing")


def _streams(program: Program) -> None:
    """Between two devices both sides must keep one order, of values and of gradients each."""
    # (source, target, backwards): the other side of a send or receive was proven to be a device
    sent: dict[tuple[int | None, int | None, bool], list[str]] = {}
    received: dict[tuple[int | None, int | None, bool], list[str]] = {}
    for device, queue in program.queues.items():
        for task in queue:
            if task.transfer is not None:
                back, key = task.transfer.backwards, task.transfer.key(task.micro)
                if task.kind == "send":
                    sent.setdefault((device, task.peer, back), []).append(key)
                else:
                    received.setdefault((task.peer, device, back), []).append(key)
    nothing: Sequence[str] = ()
    for stream in {**sent, **received}:
        out, into = sent.get(stream, nothing), received.get(stream, nothing)
        if out == into:
            continue
        place = next((i for i, (a, b) in enumerate(zip(out, into, strict=False)) if a != b), min(len(out), len(into)))
        gone = f'"{out[place]}"' if place < len(out) else "nothing more"
        got = f'"{into[place]}"' if place < len(into) else "nothing more"
        raise PlanError(
            f"device {stream[0]} sends {gone} where device {stream[1]} receives {got}: between two devices both sides "
            "must keep one order"
        )
