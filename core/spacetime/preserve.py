"""Materialise every dependency between turns as tasks: transfers of values and gradients, shared parameters, averages.

A value goes straight from the stage that makes it to each stage that reads it (a skip isn't relayed), its gradient the
other way. A parameter that several stages read has one owner, the first; the others send it their gradients before the
update and get the new value after it. Between a pair of devices, values and gradients are two streams, each sent and
received in one order, the same on both sides: a receiver takes them in the order in which the sender's turns make them.
Where the turns of two stages take unlike samples, it is parts that are sent, and the reader joins them (``crossing``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partita.graph import Graph
from partita.schedules import Turn
from partita.spacetime.alike import of_stages
from partita.spacetime.communication import Meshes
from partita.spacetime.crossing import Crossing, require_divisible
from partita.spacetime.program import Piece, Place, Share, Task, Transfer, made, put_off_by, saved
from partita.spacetime.shared import end_of_step, new_value, require_counterparts, shared_parameters


@dataclass(frozen=True)
class Version:
    """The model's code at one shape of micro-batch, a piece for each stage.

    ``graph`` is the model, or where stages take unlike samples a turn, of each its own.
    """

    graph: Graph | tuple[Graph, ...]
    pieces: tuple[Piece, ...]

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of each stage."""
        return of_stages(self.graph, len(self.pieces))

    @cached_property
    def edges(self) -> list[Transfer]:
        """The values that cross stages, found once however many micro-batches and devices run this code."""
        return _edges(self.graphs, self.pieces)

    @cached_property
    def copies(self) -> list[Transfer]:
        """New values of parameters from their owners to the stages with copies. A frozen one never changes."""
        return [
            new_value(self.graphs[0], self.pieces, *pair)
            for pair in shared_parameters(self.pieces)
            if self.graphs[0].tensor[pair[0]].gradient
        ]


def preserve(
    version: Version,
    places: Mapping[int, tuple[Place, ...]],
    devices_of: Sequence[Sequence[int]],
    turns: Mapping[int, Sequence[Turn]],
    shares: Sequence[Share] = (),
) -> dict[int, tuple[Task, ...]]:
    """Every device's queue for a step. ``shares``: what each stage takes of the global batch, default all alike.

    PlanError where stages that share a parameter have unlike copies, and
    for a value that can't be divided where it must.
    """
    meshes, queues = Meshes(places, devices_of), {}
    crossing = Crossing(meshes, shares, version.graphs)
    for name, owner, copy in shared_parameters(version.pieces):
        require_counterparts(version.pieces, name, owner, copy, meshes)
    for edge in version.edges if shares else ():
        require_divisible(edge, crossing.rows, shares)
    for device in sorted(places):
        # Whether all of them have turns is for the proof to say.
        micro_batches = 1 + max((turn.micro for turn in turns[device]), default=-1)
        tasks = _all_turns([version] * micro_batches, device, crossing, turns[device])
        queues[device] = (*tasks, *end_of_step(version.copies, device, meshes))
    return in_order(queues)


def turn_tasks(
    versions: Sequence[Version],
    device: int,
    places: Mapping[int, tuple[Place, ...]],
    devices_of: Sequence[Sequence[int]],
    turns: Sequence[Turn],
) -> tuple[Task, ...]:
    """A device's turns with the transfers around them; ``versions[m]`` is the code that micro-batch m runs."""
    return _all_turns(versions, device, Crossing(Meshes(places, devices_of)), turns)


def step_tasks(
    version: Version, device: int, places: Mapping[int, tuple[Place, ...]], devices_of: Sequence[Sequence[int]]
) -> tuple[Task, ...]:
    """A device's end of a step, after its last turn."""
    return end_of_step(version.copies, device, Meshes(places, devices_of))


def _all_turns(versions: Sequence[Version], device: int, crossing: Crossing, turns: Sequence[Turn]) -> tuple[Task, ...]:
    trains = {turn.stage for turn in turns if turn.phase == "backward"}
    puts_off = {turn.stage for turn in turns if turn.phase == "weight"}
    tasks: list[Task] = []
    # What surrounds a turn is the same for all micro-batches of one version.
    around: dict[tuple[int, int], _Around] = {}
    for turn in turns:
        version, stage = versions[turn.micro], turn.stage
        key = (id(version), stage)
        if key not in around:
            around[key] = _Around(version.pieces[stage], version.edges, device, crossing)
        if turn.phase == "forward":
            tasks += around[key].forward(turn.micro, stage in trains)
        elif turn.phase == "backward":
            tasks += around[key].backward(turn.micro, stage in puts_off)
        else:
            put_off = (put_off_by(stage, turn.micro),)
            tasks.append(Task("weight", stage, turn.micro, reads=put_off, frees=put_off))
    return tuple(_freed(tasks, trains))


def _edges(graphs: Sequence[Graph], pieces: Sequence[Piece]) -> list[Transfer]:
    """The values that cross stages, one transfer for each reader, in the order in which the maker's code makes them.

    Shapes are the maker's. ``graphs`` are by stage.
    """
    made = {
        name: piece.stage
        for piece in pieces
        for segment in piece.segments
        for o in segment.ops
        for name in o.op.outputs
    }
    position = {name: index for index, name in enumerate(made)}
    edges = []
    for piece in pieces:
        for name in piece.inputs:
            tensor = graphs[made[name]].tensor[name]
            edge = Transfer(
                name, "value", made[name], piece.stage, tensor.shape, tensor.dtype, tensor.bytes, tensor.gradient
            )
            edges.append(edge)
    return sorted(edges, key=lambda edge: (edge.source, edge.target, position[edge.tensor]))


class _Around:
    """The turns of a stage on one device, with the transfers around them."""

    def __init__(self, piece: Piece, edges: Sequence[Transfer], device: int, crossing: Crossing):
        self.piece, self.stage, self.device = piece, piece.stage, device
        self.crossing, self.meshes = crossing, crossing.meshes
        arriving = [self._marked(edge) for edge in edges if edge.target == piece.stage]
        leaving = [self._marked(edge) for edge in edges if edge.source == piece.stage]
        back_in = [_gradient(edge) for edge in leaving if edge.differentiable]
        back_out = [_gradient(edge) for edge in arriving if edge.differentiable]
        # Each with the device that it comes from, or with those that it goes to; of what goes in parts none.
        self.arriving = [(edge, self._source(edge)) for edge in arriving]
        self.back_in = [(edge, self._source(edge)) for edge in back_in]
        self.leaving = [(edge, self._peers(edge)) for edge in leaving]
        self.back_out = [(edge, self._peers(edge)) for edge in back_out]
        # Stages of the device itself, which read there what it has.
        self.own = frozenset(self.meshes.stages(device))

    def forward(self, micro: int, trains: bool) -> list[Task]:
        stage = self.stage
        tasks, reads = [], {}
        for edge, source in self.arriving:
            if source == self.device:
                reads[edge.tensor] = made(edge.tensor, micro)
            else:
                reads[edge.tensor] = edge.key(micro)
                tasks += self._received(edge, source, micro)
        kept = (saved(stage, micro),) if trains else ()
        tasks.append(
            Task("forward", stage, micro, reads=tuple(reads[name] for name in self.piece.inputs),
                 writes=(*(made(name, micro) for name in self.piece.outputs), *kept))
        )  # fmt: skip
        return tasks + [
            Task("send", stage, micro, message, peer=peer, reads=(made(edge.tensor, micro),))
            for edge, peers in self.leaving
            for peer, message in self._messages(edge, peers, micro)
        ]

    def backward(self, micro: int, puts_off: bool) -> list[Task]:
        stage = self.stage
        tasks = [
            task
            for edge, source in self.back_in
            if source != self.device
            for task in self._received(edge, source, micro)
        ]
        arrived = [edge.key(micro) for edge, _ in self.back_in]
        written = [edge.sent(micro) for edge, _ in self.back_out]
        sending = [self._messages(edge, peers, micro) for edge, peers in self.back_out]
        # A gradient is there until it has been sent, or taken by a stage of this device.
        unread = [
            key for key, messages, (edge, _) in zip(written, sending, self.back_out, strict=True)
            if not messages and edge.target not in self.own
        ]  # fmt: skip
        frees = (
            saved(stage, micro),
            *(edge.key(micro) for edge, source in self.arriving if source != self.device),
            *(made(name, micro) for name in self.piece.outputs),
            *arrived,
            *unread,
        )
        tasks.append(
            Task("backward", stage, micro, gradients=tuple(edge for edge, _ in (*self.back_in, *self.back_out)),
                 reads=(saved(stage, micro), *arrived),
                 writes=(*written, *((put_off_by(stage, micro),) if puts_off else ())), frees=frees)
        )  # fmt: skip
        for name, messages, (edge, _) in zip(written, sending, self.back_out, strict=True):
            for place, (peer, message) in enumerate(messages, start=1):
                over = place == len(messages) and edge.target not in self.own
                tasks.append(
                    Task("send", stage, micro, message, peer=peer, reads=(name,), frees=(name,) if over else ())
                )
        return tasks

    def _marked(self, edge: Transfer) -> Transfer:
        return replace(edge, parts=True) if self.crossing.in_parts(edge.source, edge.target) else edge

    def _source(self, edge: Transfer) -> int | None:
        """The device that has what arrives here. None where it comes in parts."""
        return None if edge.parts else self.meshes.source(self.device, self.stage, edge.source)

    def _peers(self, edge: Transfer) -> list[int]:
        """The other devices that have from this one what crosses to the other stage."""
        if edge.parts:
            return []
        return [peer for peer in self.meshes.readers(self.device, self.stage, edge.target) if peer != self.device]

    def _received(self, edge: Transfer, source: int | None, micro: int) -> list[Task]:
        """The receives of what arrives for a turn; of parts, and then they are joined."""
        key = edge.key(micro)
        if source is not None:
            return [Task("receive", self.stage, micro, edge, peer=source, writes=(key,))]
        tasks = []
        for arrival in self.crossing.arriving(self.device, self.stage, micro, edge.source):
            assert arrival.interval is not None
            part = self.crossing.rows.part(edge, arrival.interval)
            tasks.append(Task("receive", self.stage, micro, part, peer=arrival.source, writes=(part.key(micro),)))
        parts = tuple(task.writes[0] for task in tasks)
        return [*tasks, Task("join", self.stage, micro, edge, reads=parts, writes=(key,), frees=parts)]

    def _messages(self, edge: Transfer, peers: Sequence[int], micro: int) -> list[tuple[int, Transfer]]:
        """What is sent after a turn, and to whom."""
        if not edge.parts:
            return [(peer, edge) for peer in peers]
        return [
            (peer, self.crossing.rows.part(edge, samples))
            for peer, samples in self.crossing.leaving(self.device, self.stage, micro, edge.target)
        ]


def _freed(tasks: list[Task], trains: set[int]) -> list[Task]:
    """Values of stages without backward turns go with the last task that reads them."""
    last: dict[str, int] = {}
    for position, task in enumerate(tasks):
        if task.stage not in trains and task.kind == "forward":
            last.update(dict.fromkeys((*task.writes, *task.reads), position))
        for name in task.reads:
            if name in last:
                last[name] = position
    # What a stage with backward turns has made is freed by those.
    kept = {name for task in tasks if task.stage in trains for name in (*task.writes, *task.frees)}
    over: dict[int, tuple[str, ...]] = {}
    for name, position in last.items():
        if name not in kept:
            over[position] = (*over.get(position, ()), name)
    return [
        replace(task, frees=(*task.frees, *over[position])) if position in over else task
        for position, task in enumerate(tasks)
    ]


def in_order(queues: Mapping[int, tuple[Task, ...]]) -> dict[int, tuple[Task, ...]]:
    """The queues, each device's receives in the order in which the others send: a stream is first in, first out.

    A message that comes before one that is needed is received before it.
    """
    sent: dict[tuple[int, int, bool], list[str]] = {}
    taken: dict[tuple[int, int, bool], dict[str, Task]] = {}
    for device, queue in queues.items():
        for task in queue:
            if task.transfer is not None and task.peer is not None:
                back, key = task.transfer.backwards, task.transfer.key(task.micro)
                if task.kind == "send":
                    sent.setdefault((device, task.peer, back), []).append(key)
                else:
                    taken.setdefault((task.peer, device, back), {})[key] = task
    odd = {
        (target, source, back): [taken[source, target, back][key] for key in keys]
        for (source, target, back), keys in sent.items()
        if (stream := taken.get((source, target, back))) and list(stream) != keys and stream.keys() == set(keys)
    }
    receivers = {target for target, _, _ in odd}
    return {
        device: _received_in_order(device, queue, odd) if device in receivers else queue
        for device, queue in queues.items()
    }


def _received_in_order(
    device: int, queue: tuple[Task, ...], odd: Mapping[tuple[int, int, bool], Sequence[Task]]
) -> tuple[Task, ...]:
    """The queue with the receives of these streams (receiver, sender, direction) in the order given."""
    places = {stream: {task: place for place, task in enumerate(tasks)} for stream, tasks in odd.items()}
    found: list[Task] = []
    gone = dict.fromkeys(odd, 0)
    for task in queue:
        if task.kind == "receive" and task.transfer is not None and task.peer is not None:
            stream = (device, task.peer, task.transfer.backwards)
            if stream in odd:
                end = places[stream][task] + 1
                found += odd[stream][gone[stream] : end]
                gone[stream] = max(gone[stream], end)
                continue
        found.append(task)
    return tuple(found)


def _gradient(edge: Transfer) -> Transfer:
    return replace(edge, what="gradient", source=edge.target, target=edge.source)
