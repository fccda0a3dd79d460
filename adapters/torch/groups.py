"""The process groups of a program. Every rank must make them, in the same order, whether it is a member or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from partita.spacetime.program import Program


@dataclass(frozen=True)
class Groups:
    """This rank's groups; None where it would be alone.

    ``tensor`` shares the pieces of its stage, ``data`` holds the same parameters, ``model`` is one whole copy of the
    model. ``values`` and ``gradients`` are two groups of all ranks, one for each direction of transfers: two streams,
    so that a paired exchange can't block itself.
    """

    rank: int
    tensor: dist.ProcessGroup | None
    data: dist.ProcessGroup | None
    model: dist.ProcessGroup | None
    values: dist.ProcessGroup
    gradients: dist.ProcessGroup


def make_groups(program: Program, device: torch.device) -> Groups:
    """Make the groups, and the connections of every transfer. Collective over all ranks."""
    rank = dist.get_rank()
    devices = sorted(program.places)
    tensor = _mine(rank, sorted({program.tensor_group(device) for device in devices}))
    data = _mine(rank, sorted({program.data_group(device) for device in devices}))
    copies = sorted({place.data for place in program.places.values()})
    model = _mine(rank, [tuple(d for d in devices if program.places[d].data == copy) for copy in copies])
    groups = Groups(rank, tensor, data, model, dist.new_group(), dist.new_group())
    _connect(program, groups, device)
    return groups


def _connect(program: Program, groups: Groups, device: torch.device) -> None:
    """One element from each sender to each of its receivers, in one order for all ranks.

    NCCL makes the connection of a pair at its first transfer, and both ends wait for it. Inside a step, where a receive
    is posted long before its send, they would wait for each other.
    """
    sends = [(at, task) for at, queue in program.queues.items() for task in queue if task.kind == "send"]
    for group, backwards in ((groups.values, False), (groups.gradients, True)):
        pairs = {(at, task.peer) for at, task in sends if task.transfer and task.transfer.backwards == backwards}
        for source, target in sorted(pairs):  # type: ignore[type-var]
            element = torch.zeros(1, device=device)
            if groups.rank == source:
                dist.send(element, target, group=group)
            elif groups.rank == target:
                dist.recv(element, source, group=group)


def _mine(rank: int, groups: list[tuple[int, ...]]) -> dist.ProcessGroup | None:
    found = None
    for members in groups:
        if len(members) > 1:
            group = dist.new_group(list(members))
            if rank in members:
                found = group
    return found
