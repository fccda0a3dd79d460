"""Messages between ranks, all on their way at once: no order of them can block another. Elements travel as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.redistribute.room import Room

# What process groups can't add up, and in what it is added up instead.
_ADDED_AS = {
    torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32,
}  # fmt: skip


class Messages:
    """Collected with ``send`` and ``receive``, contiguous tensors both; they are carried by ``all``.

    Between two ranks those of one direction keep their order. Empty ones aren't sent; both ends know which are.
    """

    def __init__(self) -> None:
        self._messages: list[dist.P2POp] = []

    def send(self, tensor: Tensor, rank: int) -> None:
        if tensor.numel():
            self._messages.append(dist.P2POp(dist.isend, as_bytes(tensor), rank))

    def receive(self, tensor: Tensor, rank: int) -> None:
        if tensor.numel():
            self._messages.append(dist.P2POp(dist.irecv, as_bytes(tensor), rank))

    def all(self) -> None:
        """Begin all, and wait until they are done."""
        for work in dist.batch_isend_irecv(self._messages) if self._messages else ():
            work.wait()
        self._messages.clear()


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor."""
    # One element, or none, may have any stride and is one run of memory all the same; view would keep the stride.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def addable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it in a dtype that process groups add up."""
    return tensor.to(_ADDED_AS.get(tensor.dtype, tensor.dtype))


def told_by_all(mine: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """Everyone's tensor, of one shape, in the order of the ranks, of which this is one."""
    messages, found = Messages(), []
    for rank in ranks:
        found.append(mine if rank == dist.get_rank() else torch.empty_like(mine))
        if rank != dist.get_rank():
            messages.send(mine, rank)
            messages.receive(found[-1], rank)
    messages.all()
    return found


def add_to(total: Tensor, tensor: Tensor) -> None:
    """Add to the first in its own memory."""
    if total.dtype in _ADDED_AS:
        total.copy_(addable(total) + addable(tensor))
    else:
        total += tensor


def added_by_all(tensor: Tensor, ranks: Sequence[int], room: Room) -> None:
    """Put the sum over the ranks in a contiguous tensor's place: each adds up a piece, and tells it the others.

    The pieces are added in the order of the ranks, so that all have the same to the last bit.
    """
    me = dist.get_rank()
    pieces = dict(zip(ranks, tensor.view(-1).tensor_split(len(ranks)), strict=True))
    others = [rank for rank in ranks if rank != me]
    messages = Messages()
    addends = {rank: room.empty(pieces[me].shape) for rank in others}
    for rank in others:
        messages.send(pieces[rank], rank)
        messages.receive(addends[rank], rank)
    messages.all()
    addends[me] = pieces[me]
    total = room.empty(pieces[me].shape).zero_()
    for rank in ranks:
        add_to(total, addends[rank])
    pieces[me].copy_(total)
    for rank in others:
        messages.send(pieces[me], rank)
        messages.receive(pieces[rank], rank)
    messages.all()
