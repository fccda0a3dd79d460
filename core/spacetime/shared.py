"""Parameters that several stages read, and the end of a step: one owner, the first; the others have copies.

The others send it their gradients before the update and get the new value after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from partita.errors import PlanError, listed
from partita.graph import Graph
from partita.graph.model import ITEM_BYTES
from partita.spacetime.communication import Meshes
from partita.spacetime.program import Piece, Program, Task, Transfer


def shared_parameters(pieces: Sequence[Piece]) -> list[tuple[str, int, int]]:
    """(parameter, owner's stage, copy's stage) for every copy, in order of parameter and stage."""
    owner = {name: piece.stage for piece in pieces for name in piece.parameters if name not in piece.copies}
    return sorted((name, owner[name], piece.stage) for piece in pieces for name in piece.copies)


def new_value(graph: Graph, pieces: Sequence[Piece], name: str, owner: int, copy: int) -> Transfer:
    """A parameter's way from its owner to a stage with a copy, each device's part."""
    tensor = graph.tensor[name]
    shape = list(tensor.shape)
    shard = pieces[owner].parameters[name]
    if shard is not None:
        shape[shard.dim] = shard.padded // shard.pieces
    size = prod(shape) * ITEM_BYTES[tensor.dtype]
    return Transfer(name, "parameter", owner, copy, tuple(shape), tensor.dtype, size)


def end_of_step(edges: Sequence[Transfer], device: int, meshes: Meshes) -> tuple[Task, ...]:
    """The end of a step: gradients of copies to their owners, sums over devices, the update, new values to the copies.

    ``edges`` are the new values'. Stages of one device hold one parameter together: nothing is sent.
    """
    gradients = [replace(edge, what="parameter_gradient", source=edge.target, target=edge.source) for edge in edges]
    stages = meshes.stages(device)
    return (
        *_exchanged(gradients, device, meshes),
        *(Task("reduce", stage) for stage in stages),
        *(Task("update", stage) for stage in stages),
        *_exchanged(edges, device, meshes),
    )


def _exchanged(edges: Sequence[Transfer], device: int, meshes: Meshes) -> list[Task]:
    """The device's sends, then its receives."""
    sends, receives = [], []
    for stage in meshes.stages(device):
        for edge in edges:
            if stage not in (edge.source, edge.target):
                continue
            name, (readers, senders) = (edge.sent(None),), meshes.shared(edge)
            peers = readers.get(device, ()) if edge.source == stage else ()
            for peer in peers:
                # A parameter stays, its gradient goes.
                frees = name if edge.backwards and peer == peers[-1] else ()
                sends.append(Task("send", stage, None, edge, peer=peer, reads=name, frees=frees))
            for peer in senders.get(device, ()) if edge.target == stage else ():
                receives.append(Task("receive", stage, None, edge, peer=peer, writes=(edge.key(None),)))
    return sends + receives


def require_counterparts(pieces: Sequence[Piece], name: str, owner: int, copy: int, meshes: Meshes) -> None:
    """PlanError unless each device of the one stage has its part of a shared parameter from one of the other."""
    widths = [len(meshes.copy(stage, 0)) for stage in (owner, copy)]
    both = [device for device in meshes.devices_of[owner] if copy in meshes.stages(device)]
    both_pieces = [pieces[stage] for stage in (owner, copy)]
    cut = any(piece.parameters[name] is not None or piece.partial.get(name) for piece in both_pieces)
    if widths[0] != widths[1] and (cut or both):
        raise PlanError(
            f'parameter "{name}" is shared by the stages {owner} and {copy}, whose copies have {widths[0]} and '
            f"{widths[1]} devices; as many in both work"
            + (", and so do devices of their own" if not cut else ", and so does a parameter that neither cuts")
        )
    for device in both:
        places = [meshes.place(device, stage).tensor for stage in (owner, copy)]
        if places[0] != places[1]:
            raise PlanError(
                f'parameter "{name}" is shared by the stages {owner} and {copy}; device {device} is number '
                f"{places[0]} of a copy of the one and number {places[1]} of the other; the same in both works"
            )


def require_chunks(program: Program) -> None:
    """PlanError unless stages that share a parameter, of which ZeRO 2 and 3 keep a chunk on each copy, have the same
    chunks: in each the same devices, where one serves both, and as many."""
    for name, stages in program.shared.items():
        if (zero := program.zero.get(name, 0)) < 2:
            continue
        copies = [program.dp[stage] for stage in stages]
        if len(set(copies)) > 1:
            raise PlanError(
                f'zero={zero}: the stages {listed(stages)} share "{name}" and would divide it over {listed(copies)} '
                "data-parallel copies each; as many in each work, and so do zero=0 and zero=1"
            )
        over = {(d, program.data_group(d, stage)) for stage in stages for d in program.devices_of[stage]}
        for device, members in sorted(over) if copies[0] > 1 else ():
            others = [other for at, other in over if at == device and other != members]
            if others or list(members) != sorted(members):
                raise PlanError(
                    f'zero={zero}: the stages {list(stages)} share "{name}", which device {device} would divide over '
                    f"the devices {' and '.join(str(list(found)) for found in (members, *others))}; it takes the same "
                    "devices in each, in ascending order. zero=0 and zero=1 work"
                )
