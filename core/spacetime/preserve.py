"""Materialise every dependency between turns as tasks: transfers of values and gradients, shared parameters, averages.

A value goes straight from the stage that makes it to each stage that reads it (a skip isn't relayed), its gradient the
other way. A parameter that several stages read has one owner, the first; the others send it their gradients before the
update and get the new value after it. Between a pair of devices, values and gradients are two streams, each sent and
received in one order, the same on both sides: a receiver takes them in the order in which the sender's turns make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from partita.errors import PlanError
from partita.graph import Graph
from partita.graph.model import ITEM_BYTES
from partita.schedules import Turn
from partita.spacetime.program import Piece, Place, Task, Transfer


def preserve(
    graph: Graph,
    pieces: Sequence[Piece],
    places: Mapping[int, Place],
    devices_of: Sequence[Sequence[int]],
    turns: Mapping[int, Sequence[Turn]],
) -> dict[int, tuple[Task, ...]]:
    """Every device's queue. PlanError when a stage reads what a later stage makes."""
    edges = _edges(graph, pieces)
    # A frozen parameter has no gradient, and no new value after the update.
    shared = [pair for pair in shared_parameters(graph, pieces) if graph.tensor[pair[0]].gradient]
    queues = {}
    for device in sorted(places):
        stage = places[device].stage
        index = list(devices_of[stage]).index(device)
        peers = [devices[index] for devices in devices_of]
        tasks = _turn_tasks(pieces[stage], edges, turns[device], peers)
        tasks += _shared_tasks(stage, [_parameter(graph, pieces, *pair) for pair in shared], peers)
        queues[device] = tuple(tasks)
    return queues


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


def _turn_tasks(piece: Piece, edges: Sequence[Transfer], turns: Sequence[Turn], peers: Sequence[int]) -> list[Task]:
    """Forward and backward tasks with the transfers around them; ``peers[s]`` is the device to talk to in stage s."""
    stage = piece.stage
    arriving = [edge for edge in edges if edge.target == stage]
    leaving = [edge for edge in edges if edge.source == stage]
    tasks = []
    for turn in turns:
        micro = turn.micro
        saved = f"saved@{micro}"
        if turn.phase == "forward":
            for edge in arriving:
                tasks.append(_receive(edge, micro, peers[edge.source]))
            tasks.append(
                Task("forward", stage, micro, reads=tuple(edge.key(micro) for edge in arriving),
                     writes=(*(f"{name}@{micro}" for name in piece.outputs), saved))
            )  # fmt: skip
            for edge in leaving:
                tasks.append(_send(edge, micro, peers[edge.target]))
        else:
            back_in = [_gradient(edge) for edge in leaving if edge.differentiable]
            back_out = [_gradient(edge) for edge in arriving if edge.differentiable]
            for edge in back_in:
                tasks.append(_receive(edge, micro, peers[edge.source]))
            frees = (
                saved, *(edge.key(micro) for edge in arriving), *(f"{name}@{micro}" for name in piece.outputs),
                *(edge.key(micro) for edge in back_in),
            )  # fmt: skip
            tasks.append(
                Task("backward", stage, micro, gradients=(*back_in, *back_out),
                     reads=(saved, *(edge.key(micro) for edge in back_in)),
                     writes=tuple(edge.key(micro) for edge in back_out), frees=frees)
            )  # fmt: skip
            for edge in back_out:
                tasks.append(_send(edge, micro, peers[edge.target]))
    return tasks


def _gradient(edge: Transfer) -> Transfer:
    return replace(edge, what="gradient", source=edge.target, target=edge.source)


def _send(edge: Transfer, micro: int | None, peer: int) -> Task:
    # A value is kept for the backward task; a gradient was made to be sent.
    frees = (edge.key(micro),) if edge.what == "gradient" else ()
    return Task("send", edge.source, micro, edge, peer=peer, reads=(edge.key(micro),), frees=frees)


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
