"""Process groups of a mesh's axes, made when they are first needed and kept for as long as torch's own group lives.

torch makes a group only where all ranks of the job take part, its members or not. So groups are made of meshes that
have all ranks, and those of a DeviceMesh are taken from it. On other meshes ranks send each other messages, in torch's
own group: on NCCL some collective of all ranks must have been called before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from partita.adapters.torch.groups import patience_of
from partita.redistribution.mesh import Mesh


@dataclass
class _Known:
    """Groups by their ranks in order. ``made`` has the same keys on all ranks of the job, with None for groups that
    this rank isn't in. ``adopted`` are groups of meshes of which some ranks may not know."""

    world: ProcessGroup | None = None
    made: dict[tuple[int, ...], ProcessGroup | None] = field(default_factory=dict)
    adopted: dict[tuple[int, ...], ProcessGroup] = field(default_factory=dict)


_known = _Known()


def members_along(mesh: Mesh, axes: Sequence[str], rank: int) -> tuple[int, ...]:
    """The ranks of this one's group along axes of a mesh, in order."""
    return tuple(sorted(mesh.group_of(rank, axes)))


def group_along(mesh: Mesh, axes: Sequence[str], rank: int, device: torch.device) -> ProcessGroup | None:
    """This rank's group along axes of a mesh; None where there is none. All ranks of the mesh must ask for it alike."""
    known = _now()
    mine = members_along(mesh, axes, rank)
    if len(mesh.devices) < dist.get_world_size() or len(mine) == 1:
        return known.adopted.get(mine)
    for places in mesh.groups(axes):
        ranks = tuple(sorted(mesh.devices[place] for place in places))
        if ranks not in known.made:
            group = dist.new_group(list(ranks), timeout=patience_of(device))
            known.made[ranks] = group if rank in ranks else None
    return known.made[mine]


def adopt(mesh: DeviceMesh) -> None:
    """The groups of a DeviceMesh serve along its axes. All its ranks call this alike."""
    known = _now()
    for dim in range(mesh.ndim):
        own = None if mesh.get_coordinate() is None else mesh.get_group(dim)
        mine = () if own is None else tuple(sorted(dist.get_process_group_ranks(own)))
        if mesh.size() == dist.get_world_size():
            for row in mesh.mesh.movedim(dim, -1).reshape(-1, mesh.size(dim)).tolist():
                known.made.setdefault(tuple(sorted(row)), own if tuple(sorted(row)) == mine else None)
        elif own is not None:
            known.adopted[mine] = own


def _now() -> _Known:
    """What is known since torch's group was made: with another one before it all groups have ended."""
    global _known
    world = dist.group.WORLD
    assert world is not None
    if _known.world is not world:
        _known = _Known(world, {tuple(range(world.size())): world})
    return _known
