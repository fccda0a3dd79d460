"""Materialise every dependency between turns as tasks: transfers of values and gradients, shared parameters, averages.

A value goes straight from the stage that makes it to each stage that reads it (a skip isn't relayed), its gradient the
other way. A parameter that several stages read has one owner, the first; the others send it their gradients before the
update and get the new value after it. Between a pair of devices, values and gradients are two streams, each sent and
received in one order, the same on both sides: a receiver takes them in the order in which the sender's turns make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from partita.errors import PlanError
from partita.graph import Graph
from partita.graph.model import ITEM_BYTES
from partita.schedules import Turn
from partita.spacetime.program import Piece, Place, Task, Transfer


@dataclass(frozen=True)
class Version:
    """The model's code at one shape of micro-batch, a piece for each stage."""

    graph: Graph
    pieces: tuple[Piece, ...]

    @cached_property
    def edges(self) -> list[Transfer]:
        """The values that cross stages, found once however many micro-batches and devices run this code."""
        return _edges(self.graph, self.pieces)


def preserve(
    version: Version,
    places: Mapping[int, Place],
    devices_of: Sequence[Sequence[int]],
    turns: Mapping[int, Sequence[Turn]],
) -> dict[int, tuple[Task, ...]]:
    """Every device's queue for a step. PlanError when a stage reads what a later stage makes."""
    queues = {}
    for device in sorted(places):
        micro_batches = len({turn.micro for turn in turns[device]})
        tasks = turn_tasks([version] * micro_batches, device, places, devices_of, turns[device])
        queues[device] = (*tasks, *step_tasks(version, device, places, devices_of))
    return queues


def turn_tasks(
    versions: Sequence[Version],
    device: int,
    places: Mapping[int, Place],
    devices_of: Sequence[Sequence[int]],
    turns: Sequence[Turn],
) -> tuple[Task, ...]:
    """A device's turns with the transfers around them; ``versions[m]`` is the code that micro-batch m runs."""
    stage, peers = _stage_and_peers(device, places, devices_of)
    trains = any(turn.phase == "backward" for turn in turns)
    tasks: list[Task] = []
    for turn in turns:
        version = versions[turn.micro]
        tasks += _turn_tasks(version.pieces[stage], version.edges, turn, peers, trains)
    return tuple(tasks)


def step_tasks(
    version: Version, device: int, places: Mapping[int, Place], devices_of: Sequence[Sequence[int]]
) -> tuple[Task, ...]:
    """A device's end of a step, after its last turn."""
    graph, pieces = version.graph, version.pieces
    stage, peers = _stage_and_peers(device, places, devices_of)
    # A frozen parameter has no gradient, and no new value after the update.
    shared = [pair for pair in shared_parameters(graph, pieces) if graph.tensor[pair[0]].gradient]
    return tuple(_shared_tasks(stage, [_parameter(graph, pieces, *pair) for pair in shared], peers))


def _stage_and_peers(
    device: int, places: Mapping[int, Place], devices_of: Sequence[Sequence[int]]
) -> tuple[int, list[int]]:
    """The device's stage, and the device to talk to in each stage."""
    stage = places[device].stage
    index = list(devices_of[stage]).index(device)
    return stage, [devices[index] for devices in devices_of]


def _edges(graph: Graph, pieces: Sequence[Piece]) -> list[Transfer]:
    """The values that cross stages, one transfer for each reader, in the order in which the maker's code makes them."""
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
            if made[name] > piece.stage:
                raise PlanError(
                    f'stage {piece.stage} reads "{name}", which stage {made[name]} makes: '
                    "stages must follow the model's order"
                )
            tensor = graph.tensor[name]
            edge = Transfer(
                name, "value", made[name], piece.stage, tensor.shape, tensor.dtype, tensor.bytes, tensor.gradient
            )
            edges.append(edge)
    return sorted(edges, key=lambda edge: (edge.source, edge.target, position[edge.tensor]))


def _turn_tasks(piece: Piece, edges: Sequence[Transfer], turn: Turn, peers: Sequence[int], trains: bool) -> list[Task]:
    """A forward or backward task with the transfers around it. Without training nothing is kept after its last send."""
    stage, micro = piece.stage, turn.micro
    arriving = [edge for edge in edges if edge.target == stage]
    leaving = [edge for edge in edges if edge.source == stage]
    saved = f"saved@{micro}"
    if turn.phase == "forward":
        tasks = [_receive(edge, micro, peers[edge.source]) for edge in arriving]
        tasks.append(
            Task("forward", stage, micro, reads=tuple(edge.key(micro) for edge in arriving),
                 writes=(*(f"{name}@{micro}" for name in piece.outputs), *((saved,) if trains else ())))
        )  # fmt: skip
        last = {edge.tensor: edge for edge in leaving}
        return tasks + [
            _send(edge, micro, peers[edge.target], frees=not trains and last[edge.tensor] is edge) for edge in leaving
        ]
    back_in = [_gradient(edge) for edge in leaving if edge.differentiable]
    back_out = [_gradient(edge) for edge in arriving if edge.differentiable]
    tasks = [_receive(edge, micro, peers[edge.source]) for edge in back_in]
    frees = (
        saved, *(edge.key(micro) for edge in arriving), *(f"{name}@{micro}" for name in piece.outputs),
        *(edge.key(micro) for edge in back_in),
    )  # fmt: skip
    tasks.append(
        Task("backward", stage, micro, gradients=(*back_in, *back_out),
             reads=(saved, *(edge.key(micro) for edge in back_in)),
             writes=tuple(edge.key(micro) for edge in back_out), frees=frees)
    )  # fmt: skip
    # A gradient was made to be sent.
    return tasks + [_send(edge, micro, peers[edge.target], frees=True) for edge in back_out]


def _gradient(edge: Transfer) -> Transfer:
    return replace(edge, what="gradient", source=edge.target, target=edge.source)


def _send(edge: Transfer, micro: int | None, peer: int, frees: bool = False) -> Task:
    read = (edge.key(micro),)
    return Task("send", edge.source, micro, edge, peer=peer, reads=read, frees=read if frees else ())


def _receive(edge: Transfer, micro: int | None, peer: int) -> Task:
    return Task("receive", edge.target, micro, edge, peer=peer, writes=(edge.key(micro),))


def shared_parameters(graph: Graph, pieces: Sequence[Piece]) -> list[tuple[str, int, int]]:
    """(parameter, owner's stage, copy's stage) for every copy, in order of parameter and stage."""
    owner = {name: piece.stage for piece in pieces for name in piece.parameters if name not in piece.copies}
    return sorted((name, owner[name], piece.stage) for piece in pieces for name in piece.copies)


def _parameter(graph: Graph, pieces: Sequence[Piece], name: str, owner: int, copy: int) -> Transfer:
    tensor = graph.tensor[name]
    shape = list(tensor.shape)
    shard = pieces[owner].parameters[name]
    if shard is not None:
        shape[shard.dim] = shard.padded // shard.pieces
    size = prod(shape) * ITEM_BYTES[tensor.dtype]
    return Transfer(name, "parameter", owner, copy, tuple(shape), tensor.dtype, size)


def _shared_tasks(stage: int, shared: Sequence[Transfer], peers: Sequence[int]) -> list[Task]:
    """The end of a step: gradients of copies to their owners, averages, the update, new values to the copies."""
    tasks = []
    gradients = [replace(edge, what="parameter_gradient", source=edge.target, target=edge.source) for edge in shared]
    tasks += [_send(edge, None, peers[edge.target]) for edge in gradients if edge.source == stage]
    tasks += [_receive(edge, None, peers[edge.source]) for edge in gradients if edge.target == stage]
    tasks += [Task("reduce", stage), Task("update", stage)]
    tasks += [_send(edge, None, peers[edge.target]) for edge in shared if edge.source == stage]
    tasks += [_receive(edge, None, peers[edge.source]) for edge in shared if edge.target == stage]
    return tasks
