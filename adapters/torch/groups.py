"""The groups of a program. Every rank must make them, in the same order, whether it is a member or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from partita.adapters.torch.wires import Group, Line, ProcessGroup, ProcessLine
from partita.spacetime.program import Program


@dataclass(frozen=True)
class Groups:
    """This rank's groups. ``axes[stage][axis]`` are the devices of its copy along an inner axis, ``data[stage]`` those
    that hold the same parameters: neither is there where it would be alone. ``model`` is one whole copy of the model;
    where stages have unlike numbers of copies (not ``alike``) there is none.
    """

    rank: int
    axes: Mapping[int, Mapping[str, Group]]
    data: Mapping[int, Group]
    model: Group | None
    everyone: Group
    line: Line
    alike: bool


def make_groups(program: Program, device: torch.device) -> Groups:
    """Make the groups, and the connections of every transfer. Collective over all ranks."""
    rank = dist.get_rank()
    patience = patience_of(device)
    # The same devices are the same group, whatever they share: a rank has few connections.
    made: dict[tuple[int, ...], ProcessGroup | None] = {}

    def make(members: tuple[int, ...]) -> None:
        if len(members) > 1 and members not in made:
            group = dist.new_group(list(members), timeout=patience)
            made[members] = ProcessGroup(group).listed(members) if rank in members else None

    for members in all_groups(program):
        make(members)
    values, gradients = dist.new_group(timeout=patience), dist.new_group(timeout=patience)
    line = ProcessLine(values, gradients)
    _connect(program, rank, line, device)
    return groups_of(program, rank, made.get, ProcessGroup(values), line)


def all_groups(program: Program) -> list[tuple[int, ...]]:
    """The members of every group of more than one device that the program needs, each once, in one order."""
    found: list[tuple[int, ...]] = []
    for stage, devices in enumerate(program.devices_of):
        for device in devices:
            found += [program.axis_group(device, stage, axis.name) for axis in program.inner[stage]]
            found.append(program.data_group(device, stage))
    found += _models(program)
    return [members for members in dict.fromkeys(found) if len(members) > 1]


def groups_of(
    program: Program, rank: int, group: Callable[[tuple[int, ...]], Group | None], everyone: Group, line: Line
) -> Groups:
    """One device's groups, from what gives the group of some members."""

    def among(pairs: Iterable[tuple[str | int, tuple[int, ...]]]) -> dict:
        return {key: found for key, members in pairs if (found := group(members)) is not None}

    stages = [place.stage for place in program.places[rank]] if rank in program.places else []
    model = next((members for members in _models(program) if rank in members), ())
    return Groups(
        rank,
        {s: among((axis.name, program.axis_group(rank, s, axis.name)) for axis in program.inner[s]) for s in stages},
        among((s, program.data_group(rank, s)) for s in stages),
        group(model), everyone, line, len(set(program.dp)) == 1,
    )  # fmt: skip


def _models(program: Program) -> list[tuple[int, ...]]:
    """The devices of each copy of the model, of one that has such."""
    if len(set(program.dp)) > 1:
        return []
    copies = sorted({place.data for places in program.places.values() for place in places})
    return [
        tuple(sorted(d for d, places in program.places.items() if any(place.data == copy for place in places)))
        for copy in copies
    ]


def _connect(program: Program, rank: int, line: ProcessLine, device: torch.device) -> None:
    """One element from each sender to each of its receivers, in one order for all ranks.

    NCCL makes the connection of a pair at its first transfer, and both ends wait for it. Inside a step, where a receive
    is posted long before its send, they would wait for each other.
    """
    sends = [(at, task) for at, queue in program.queues.items() for task in queue if task.kind == "send"]
    for backwards in (False, True):
        pairs = {(at, task.peer) for at, task in sends if task.transfer and task.transfer.backwards == backwards}
        for source, target in sorted(pairs):  # type: ignore[type-var]
            element = torch.zeros(1, device=device)
            if rank == source:
                line.send(element, target, backwards).wait()
            elif rank == target:
                line.receive(element, source, backwards).wait()


def patience_of(device: torch.device) -> timedelta:
    """How long a rank waits for another: as long as the job's own group does. New groups would have torch's default."""
    world = dist.group.WORLD
    assert world is not None
    found: timedelta = world._get_backend(device).options._timeout
    return found
