"""The process groups of a program. Every rank must make them, in the same order, whether it is a member or not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

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
    patience = patience_of(device)
    tensor = _mine(rank, sorted({program.tensor_group(d) for d in devices}), patience)
    data = _mine(rank, sorted({program.data_group(d) for d in devices}), patience)
    copies = sorted({place.data for place in program.places.values()})
    model = _mine(rank, [tuple(d for d in devices if program.places[d].data == copy) for copy in copies], patience)
    values, gradients = dist.new_group(timeout=patience), dist.new_group(timeout=patience)
    groups = Groups(rank, tensor, data, model, values, gradients)
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


def patience_of(device: torch.device) -> timedelta:
    """How long a rank waits for another: as long as the job's own group does. New groups would have torch's default."""
    world = dist.group.WORLD
    assert world is not None
    found: timedelta = world._get_backend(device).options._timeout
    return found


def _mine(rank: int, groups: list[tuple[int, ...]], patience: timedelta) -> dist.ProcessGroup | None:
    found = None
    for members in groups:
        if len(members) > 1:
            group = dist.new_group(list(members), timeout=patience)
            if rank in members:
                found = group
    return found
