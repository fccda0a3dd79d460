"""The steps of a redistribution on this rank's tensor, with the memory that was promised.

Beside what it has and what it wants, a rank needs some tens of MiB, however large the array is and however many arrays
lie between: the steps are taken on one part of the array after another (``parts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.redistribute.carry import Here, all_reduced, carry
from partita.adapters.torch.redistribute.groups import group_along
from partita.adapters.torch.redistribute.messages import addable
from partita.adapters.torch.redistribute.parts import PART_BYTES, parts, whole
from partita.adapters.torch.redistribute.room import Room
from partita.errors import InputError
from partita.redistribution.array_type import ArrayType
from partita.redistribution.steps import LOCAL, Step

# An array before a step leaves room for what is sent, what is received, and the array after it.
ROOM_BYTES = 3 * PART_BYTES + 2**20


@torch.no_grad()
def execute(steps: Sequence[Step], source: ArrayType, target: ArrayType, tensor: Tensor) -> Tensor | None:
    """This rank's array in the target, None where it has none; devices are ranks.

    All ranks of both meshes call it with the same steps; others may. ``tensor`` is the rank's array in the source, left
    as it is; a rank that has none gives any tensor of the dtype, on its device. Where nothing has to be sent, the
    result may share its memory. InputError where it has another shape than the source says.
    """
    rank = dist.get_rank()
    if rank in source.mesh.place:
        _require_shape(tensor, source, rank)
    elif not any(rank in kind.mesh.place for kind in (target, *(step.after for step in steps))):
        return None
    if not steps:
        return tensor if rank in target.mesh.place else None
    if not prod(source.shape):
        return _new(tensor, target, rank)
    tensor = tensor.resolve_conj().resolve_neg()
    mine = tensor if rank in source.mesh.place else None
    new = Room(tensor)
    if all(step.op in LOCAL for step in steps):
        return _through(steps, mine, Here(rank, whole(source.shape), new), [new])
    if _in_place(steps, rank, tensor):
        # In the memory of the result, which is all that it takes.
        return all_reduced(steps[0], new.empty(tensor.shape).copy_(tensor), Here(rank, whole(source.shape), new))
    pieces = parts(steps, tensor.dtype.itemsize)
    if len(pieces) == 1:
        return _alone(_through(steps, mine, Here(rank, pieces[0], new), [new]))
    made = _new(tensor, target, rank)
    memory = tensor.new_empty(2 * ROOM_BYTES // tensor.dtype.itemsize)
    rooms = [Room(tensor, half) for half in memory.tensor_split(2)]
    for part in pieces:
        rooms[0].clear()
        here = Here(rank, part, rooms[0])
        found = _through(steps, None if mine is None else _packed(mine, source, here), here, rooms)
        if made is not None:
            assert found is not None
            for there, where in part.regions(target.boxes[target.mesh.place[rank]]):
                made[there] = found[where]
    return made


def _in_place(steps: Sequence[Step], rank: int, tensor: Tensor) -> bool:
    """Whether it is one all-reduce, which a process group does in the tensor's own memory."""
    if len(steps) > 1 or steps[0].op != "all-reduce" or addable(tensor.new_empty(0)).dtype != tensor.dtype:
        return False
    return group_along(steps[0].before.mesh, steps[0].axes, rank, tensor.device) is not None


def _new(tensor: Tensor, kind: ArrayType, rank: int) -> Tensor | None:
    return tensor.new_empty(kind.local_shape(kind.mesh.place[rank])) if rank in kind.mesh.place else None


def _through(steps: Sequence[Step], mine: Tensor | None, here: Here, rooms: Sequence[Room]) -> Tensor | None:
    """All steps, each in the room in which its array is not; local ones may give a part of that array."""
    for step in steps:
        if step.op not in LOCAL and len(rooms) > 1:
            here = replace(here, room=rooms[1] if here.room is rooms[0] else rooms[0])
            here.room.clear()
        mine = carry(step, mine, here)
    return mine


def _packed(tensor: Tensor, kind: ArrayType, here: Here) -> Tensor:
    """This rank's elements of a part, put together."""
    found = here.empty(kind)
    for there, where in here.part.regions(kind.boxes[kind.mesh.place[here.rank]]):
        found[where] = tensor[there]
    return found


def _alone(tensor: Tensor | None) -> Tensor | None:
    """The tensor without what else there is in its memory."""
    if tensor is None or tensor.untyped_storage().nbytes() == tensor.numel() * tensor.dtype.itemsize:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _require_shape(tensor: Tensor, source: ArrayType, rank: int) -> None:
    wanted = source.local_shape(source.mesh.place[rank])
    if tuple(tensor.shape) != wanted:
        raise InputError(
            f"rank {rank} has a tensor of shape {list(tensor.shape)}; of {list(source.shape)} in the layout "
            f'"{source.layout}" on the mesh "{source.mesh}" it holds {list(wanted)}'
        )
