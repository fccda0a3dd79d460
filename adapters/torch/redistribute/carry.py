"""One step on this rank's tensor: collectives where all pieces of a group are equal, else messages, and on CPUs.

Elements travel as bytes, so that any dtype does; only sums know what they add up. Uneven pieces are never padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from partita.adapters.torch.redistribute.groups import group_along, members_along
from partita.adapters.torch.redistribute.messages import Messages, add_to, addable, added_by_all, as_bytes
from partita.adapters.torch.redistribute.parts import Part, Slices
from partita.adapters.torch.redistribute.room import Room
from partita.redistribution.array_type import ArrayType
from partita.redistribution.exchange import Copy, Exchange
from partita.redistribution.steps import LOCAL, Step
from partita.redistribution.view import Box

# torch 2.13 gives them new names and warns of the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# Where collectives other than the all-reduce are slower than messages and need more memory: gloo's copy what they are
# given, and its reduce-scatter is an all-reduce.
BY_MESSAGES = {"cpu"}


@dataclass(frozen=True)
class Here:
    """This rank, the part of the array that a step is carried out on, and where its new arrays are made."""

    rank: int
    part: Part
    room: Room

    def box(self, kind: ArrayType, device: int) -> np.ndarray:
        """What a device has of the part, ``[dims, 2]``."""
        return self.part.packed(kind.boxes[kind.mesh.place[device]])

    def empty(self, kind: ArrayType) -> Tensor:
        box = self.box(kind, self.rank)
        return self.room.empty((box[:, 1] - box[:, 0]).tolist())

    def packed(self, copy: Copy) -> np.ndarray:
        """The part of what is copied, ``[dims, 2]``."""
        return self.part.packed(np.asarray(copy.box, dtype=np.int64).reshape(-1, 2))

    def local(self, kind: ArrayType, box: np.ndarray) -> Slices:
        """A box of the part as indices of this rank's array."""
        starts = self.box(kind, self.rank)[:, 0]
        return tuple(slice(a, b) for a, b in (box - starts[:, None]).tolist())


def carry(step: Step, mine: Tensor | None, here: Here) -> Tensor | None:
    """This rank's array after the step; None where it has none. It may share the memory of ``mine``, which stays as it
    is."""
    if step.op in LOCAL:
        return None if mine is None else _locally(step, mine, here)
    if step.op in ("direct", "all-permute"):
        return _by_messages(step, mine, here)
    if mine is None:
        return None
    if step.op == "all-reduce":
        return all_reduced(step, here.room.empty(mine.shape).copy_(mine), here)
    if mine.device.type in BY_MESSAGES:
        return _by_messages(step, mine, here)
    group = group_along(step.before.mesh, step.axes, here.rank, mine.device)
    members = members_along(step.before.mesh, step.axes, here.rank)
    if group is None or not all(_equal(kind, members, here.part) for kind in (step.before, step.after)):
        return _by_messages(step, mine, here)
    collective = {"all-gather": _gather, "all-to-all": _exchange, "reduce-scatter": _scatter}[step.op]
    return collective(step, mine, here, members, group)


def all_reduced(step: Step, tensor: Tensor, here: Here) -> Tensor:
    """The sum over a step's group, in the contiguous tensor's own memory."""
    group = group_along(step.before.mesh, step.axes, here.rank, tensor.device)
    if group is None:
        added_by_all(tensor, members_along(step.before.mesh, step.axes, here.rank), here.room)
    else:
        added = addable(tensor)
        dist.all_reduce(added, group=group)
        if added is not tensor:
            tensor.copy_(added)
    return tensor


def _locally(step: Step, mine: Tensor, here: Here) -> Tensor:
    if step.op == "slice":
        return mine[here.local(step.before, here.box(step.after, here.rank))]
    if step.op == "mask":
        first = step.before.mesh.coordinates[step.axes[0]][step.before.mesh.place[here.rank]] == 0
        return mine if first else here.room.empty(mine.shape).zero_()
    made = here.empty(step.after).zero_()
    made[here.local(step.after, here.box(step.before, here.rank))] = mine
    return made


def _gather(step: Step, mine: Tensor, here: Here, members: Sequence[int], group: ProcessGroup) -> Tensor:
    arrived = here.room.empty((len(members), *mine.shape))
    _ALL_GATHER(as_bytes(arrived), as_bytes(here.room.contiguous(mine)), group=group)
    return _put_together(step, arrived, here, members)


def _exchange(step: Step, mine: Tensor, here: Here, members: Sequence[int], group: ProcessGroup) -> Tensor:
    leaving = _leaving(step, mine, here, members)
    # What arrives from a member has its extent in the dim that was cut before, and mine in the dim that is cut now.
    shape = list(mine.shape)
    assert step.to_dim is not None
    shape[step.to_dim] = leaving.shape[1 + step.to_dim]
    arrived = here.room.empty((len(members), *shape))
    dist.all_to_all_single(as_bytes(arrived), as_bytes(leaving), group=group)
    return _put_together(step, arrived, here, members)


def _scatter(step: Step, mine: Tensor, here: Here, members: Sequence[int], group: ProcessGroup) -> Tensor:
    leaving, made = _leaving(step, mine, here, members), here.empty(step.after)
    added, total = addable(leaving), addable(made)
    _REDUCE_SCATTER(total.view(-1), added.view(-1), group=group)
    return made if total is made else made.copy_(total)


def _leaving(step: Step, mine: Tensor, here: Here, members: Sequence[int]) -> Tensor:
    """What each member wants of this rank's array, in order of rank."""
    pieces = [mine[_piece(step, device, here)] for device in members]
    found = here.room.empty((len(members), *pieces[0].shape))
    for place, piece in zip(found, pieces, strict=True):
        place.copy_(piece)
    return found


def _put_together(step: Step, arrived: Tensor, here: Here, members: Sequence[int]) -> Tensor:
    """The array of what came from each member, in order of rank."""
    made = here.empty(step.after)
    for device, piece in zip(members, arrived, strict=True):
        box = _both(here.box(step.before, device), here.box(step.after, here.rank))
        made[here.local(step.after, box)] = piece
    return made


def _piece(step: Step, device: int, here: Here) -> Slices:
    """What another device wants of this rank's array."""
    return here.local(step.before, _both(here.box(step.before, here.rank), here.box(step.after, device)))


def _by_messages(step: Step, mine: Tensor | None, here: Here) -> Tensor | None:
    """One message to each who takes something and from each who gives something."""
    takes, gives = _copies(step, here.rank)
    made = here.empty(step.after) if here.rank in step.after.mesh.place else None
    messages = Messages()
    # Many may take the same; what differs doesn't overlap, so that all together isn't more than this rank has.
    leaving: dict[Box, Tensor] = {}
    for copy in gives:
        if copy.box not in leaving:
            assert mine is not None
            leaving[copy.box] = here.room.contiguous(mine[here.local(step.before, here.packed(copy))])
        messages.send(leaving[copy.box], copy.target)
    written: list[tuple[Tensor, Tensor, bool]] = []
    for copy in takes:
        assert made is not None
        place = made[here.local(step.after, here.packed(copy))]
        if copy.source == here.rank:
            assert mine is not None
            value = mine[here.local(step.before, here.packed(copy))]
        else:
            # Straight to where it belongs, if that is one run of memory.
            value = place if place.is_contiguous() and not copy.add else here.room.empty(place.shape)
            messages.receive(value, copy.source)
        written.append((place, value, copy.add))
    messages.all()
    for place, value, add in written:
        if add:
            add_to(place, value)
        elif value is not place:
            place.copy_(value)
    return made


def _equal(kind: ArrayType, members: Sequence[int], part: Part) -> bool:
    """Whether arrays of all members of a group have one shape."""
    boxes = part.packed(kind.boxes[[kind.mesh.place[device] for device in members]])
    lengths = boxes[..., 1] - boxes[..., 0]
    return bool((lengths == lengths[0]).all())


def _both(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """What two boxes have in common, perhaps nothing."""
    start = np.maximum(one[:, 0], other[:, 0])
    return np.stack([start, np.maximum(start, np.minimum(one[:, 1], other[:, 1]))], axis=1)


@lru_cache(maxsize=1024)
def _copies(step: Step, rank: int) -> tuple[list[Copy], list[Copy]]:
    """What a rank takes and gives in a step."""
    exchange = Exchange(step)
    return exchange.takes(rank), exchange.gives(rank)
