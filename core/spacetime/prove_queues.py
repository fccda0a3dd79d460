"""Every device's queue does its stage's part of a step: all of it, once, and each thing when what it needs is there.

A device runs each micro-batch through each of its stages forward once and backward once, sends and receives what
``prove_traffic`` says, reads nothing that isn't there, keeps nothing at the end. Then come the shared parameters:
gradients of copies to their owners, the reduction over data-parallel copies, the update, new values to the copies, in
this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partita.errors import PlanError
from partita.graph import Graph
from partita.spacetime.alike import of_stages
from partita.spacetime.communication import Meshes
from partita.spacetime.crossing import Rows
from partita.spacetime.program import TURNS, Program, Task, Transfer, made, put_off_by, saved
from partita.spacetime.prove_order import named
from partita.spacetime.prove_parts import prove_join, prove_message
from partita.spacetime.prove_traffic import Traffic, odd_transfer, said, traffic

# The end of a step, in order: what sends and receives of a shared parameter come between.
STEPS = ("turns", "parameter_gradient", "reduce", "update", "parameter")


def prove_queues(model: Graph | Sequence[Graph], program: Program) -> None:
    """PlanError that names device, task and tensor. Linear in tasks. ``model``: one graph, or of each stage its own."""
    graphs = of_stages(model, len(program.pieces))
    for piece in program.pieces:
        trained = [name for name in piece.outputs if graphs[piece.stage].tensor[name].gradient]
        if piece.trains != bool(trained):
            raise PlanError(
                f"stage {piece.stage} is said to be trained, but no gradient comes back to {list(piece.outputs)}"
                if piece.trains
                else f'stage {piece.stage} is said not to be trained, but a gradient comes back to "{trained[0]}"'
            )
    needed, meshes = traffic(graphs, program), Meshes(program.places, program.devices_of)
    rows = Rows(graphs)
    for device in program.queues:
        _Queue(program, device, needed, meshes, rows).prove()
    _streams(program)


class _Queue:
    """What is there and what was done while one device's queue is read."""

    def __init__(self, program: Program, device: int, traffic: Sequence[Traffic], meshes: Meshes, rows: Rows):
        self.program, self.device, self.traffic, self.meshes, self.rows = program, device, traffic, meshes, rows
        self.stages = meshes.stages(device)
        self.wanted = {s: traffic[s].of_device(device, s, meshes) for s in self.stages}
        self.phases = {(task.kind, task.stage) for task in program.queues[device] if task.kind in TURNS}
        self.there: set[str] = set()
        self.parts: dict[str, Transfer] = {}
        self.done: Counter[tuple[object, int | None]] = Counter()
        self.step = self.position = 0
        self.task: Task | None = None

    def prove(self) -> None:
        self._all_turns()
        for position, task in enumerate(self.program.queues[self.device]):
            self.position, self.task = position, task
            if task.stage not in self.stages:
                self._fail(f"is of stage {task.stage}, the device of stage {', '.join(map(str, self.stages))}")
            if (task.kind in ("send", "receive", "join")) != (task.transfer is not None):
                self._fail("must have a transfer" if task.transfer is None else "must have none")
            if task.gradients and task.kind != "backward":
                self._fail(f"takes the {said(task.gradients[0])}, as backward turns alone do")
            self._in_order(task)
            if task.transfer is not None:
                self._transfer(task)
            elif task.kind in TURNS:
                self._turn(task)
            self._values(task)
        self._all_done()

    def _fail(self, why: str) -> None:
        raise PlanError(f"{self._where()}: {why}")

    def _where(self) -> str:
        at = f", task {self.position}, {named(self.task)}" if self.task is not None else ""
        return f"device {self.device}{at}"

    def _all_turns(self) -> None:
        """Every micro-batch goes forward, and backward where a gradient flows; none or all have weight turns."""
        turns = {(task.kind, task.stage, task.micro) for task in self.program.queues[self.device]}
        for stage in self.stages:
            backward = self.program.pieces[stage].trains or ("backward", stage) in self.phases
            weight = ("weight", stage) in self.phases
            kinds = ("forward", *(("backward",) if backward else ()), *(("weight",) if weight else ()))
            for micro in range(self.program.shares[stage].turns):
                for kind in kinds:
                    if (kind, stage, micro) not in turns:
                        self._fail(f"the {kind} of micro-batch {micro} is missing on stage {stage}")

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
        elif step > 0 and task.transfer is None:
            self._fail("is for one micro-batch; once in a step it is for all")
        elif not 0 <= task.micro < (turns := self.program.shares[task.stage].turns):
            self._fail(f"is for none of the {turns} micro-batches")
        key: object = (task.kind, task.stage)
        if task.transfer is not None:
            key = (task.kind, task.transfer, task.peer)
        self.done[key, task.micro] += 1
        if self.done[key, task.micro] > 1:
            self._fail("stands in the queue a second time")

    def _transfer(self, task: Task) -> None:
        edge, stage = task.transfer, task.stage
        assert edge is not None
        traffic = self.traffic[stage]
        known = traffic.parameters if task.micro is None else traffic.each_micro_batch
        if edge not in known and (edge.samples is None or task.micro is None):
            raise odd_transfer(edge, known, self._where())
        if (edge.source if task.kind == "send" else edge.target) != stage:
            self._fail(f"the {said(edge)} isn't this stage's to {task.kind}")
        if edge.parts and (task.kind == "join") != (edge.samples is None):
            self._fail(f"the {said(edge)} goes in parts, which are sent, received and joined")
        if task.kind == "join":
            prove_join(self.program, self.device, task, self.parts, self._fail)
            return
        if edge.samples is not None:
            prove_message(self.program, self.rows, self.device, task, known, self._fail)
            self._moves(task, edge)
            if task.kind == "receive":
                self.parts[task.writes[0]] = edge
            return
        if (task.kind, edge, task.peer) not in self.wanted[stage]:
            peers = [peer for kind, other, peer in self.wanted[stage] if (kind, other) == (task.kind, edge)]
            copy = self.meshes.place(self.device, stage).data
            self._fail(
                f"goes to or comes from device {task.peer}; for copy {copy} it must be "
                + (f"device {', '.join(map(str, peers))}" if peers else "none: the device has it itself")
            )
        self._moves(task, edge)
        if task.micro is None:
            left = [
                peer
                for kind, other, peer in self.wanted[stage]
                if (kind, other) == (task.kind, edge) and not self.done[(kind, edge, peer), None]
            ]
            goes = task.kind == "send" and edge.backwards and not left
            if task.frees != (task.reads if goes else ()):
                self._fail(f"frees {list(task.frees)}; a gradient goes with its last send, and nothing else does here")

    def _moves(self, task: Task, edge: Transfer) -> None:
        """A message is of what the transfer says."""
        key = edge.sent(task.micro) if task.kind == "send" else edge.key(task.micro)
        if (task.reads, task.writes) != (((key,), ()) if task.kind == "send" else ((), (key,))):
            self._fail(f'is said to move {[*task.reads, *task.writes]}, its transfer is of "{key}"')

    def _turn(self, task: Task) -> None:
        """What a turn reads and writes must be what its piece does."""
        micro, stage = task.micro, task.stage
        assert micro is not None
        piece, traffic = self.program.pieces[stage], self.traffic[stage]
        order: tuple[str, ...] = ()
        backward, weight = (("backward", stage) in self.phases, ("weight", stage) in self.phases)
        if task.kind == "forward":
            sources = {edge.tensor: edge for edge in traffic.arriving}
            order = tuple(self._name(sources[name], micro) for name in piece.inputs)
            needs = set(order)
            makes = {made(name, micro) for name in piece.outputs} | ({saved(stage, micro)} if backward else set())
        elif task.kind == "weight":
            needs, makes = {put_off_by(stage, micro)}, set()
        else:
            if set(task.gradients) != traffic.gradients:
                odd = set(task.gradients) ^ traffic.gradients
                edge = min(odd, key=lambda edge: (edge.tensor, edge.source))
                self._fail(f"the {said(edge)} is {'not needed' if edge in task.gradients else 'left out'}")
            if len(set(task.gradients)) < len(task.gradients):
                ((edge, count),) = Counter(task.gradients).most_common(1)
                self._fail(f"the {said(edge)} is added {count} times")
            needs = {edge.key(micro) for edge in traffic.back_in} | {saved(stage, micro)}
            makes = {edge.sent(micro) for edge in traffic.back_out} | ({put_off_by(stage, micro)} if weight else set())
        if absent := sorted(needs - self.there):
            self._fail(f'needs "{absent[0]}", which {self._why_absent(absent[0])}')
        for what, wanted, found in (("reads", needs, set(task.reads)), ("writes", makes, set(task.writes))):
            if odd_names := sorted(wanted ^ found):
                self._fail(
                    f'"{odd_names[0]}" must be among what it {what}, and nothing else: it {what} {sorted(found)}'
                )
        if len(task.reads) != len(needs) or (task.kind == "forward" and task.reads != order):
            self._fail(f"reads {list(task.reads)}; its piece takes each once, in the order {list(order or needs)}")

    def _name(self, edge: Transfer, micro: int) -> str:
        """Under what a value is there for the stage that reads it."""
        itself = edge.source in self.stages
        return made(edge.tensor, micro) if itself else edge.key(micro)

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
        for stage in self.stages:
            for (kind, edge, peer), each in self.wanted[stage].items():
                for micro in range(self.program.shares[stage].turns) if each else (None,):
                    if not self.done[(kind, edge, peer), micro]:
                        at = "" if micro is None else f" of micro-batch {micro}"
                        self._fail(f"the {kind} of the {said(edge)}{at} is missing")
            for kind, why in (
                ("reduce", "the gradients of copies are never added up"),
                ("update", "nothing is learnt"),
            ):
                if not self.done[(kind, stage), None]:
                    self._fail(f"{kind} is missing in the queue: {why}")
        if self.there:
            self._fail(f'"{min(self.there)}" is never freed ({len(self.there)} such values)')


def _streams(program: Program) -> None:
    """Between two devices both sides must keep one order, of values and of gradients each."""
    # (source, target, backwards): the other side of a send or receive was proven to be a device
    sent: dict[tuple[int | None, int | None, bool], list[str]] = {}
    received: dict[tuple[int | None, int | None, bool], list[str]] = {}
    for device, queue in program.queues.items():
        for task in queue:
            if task.transfer is not None and task.kind != "join":
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
