"""What devices say to each other: collectives of a group, and a line of messages from one device to another.

The runtime knows these two alone. Between processes they are torch.distributed's; ``verify`` puts virtual devices of
one process in their place, so that what it runs is the runtime itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Group(Protocol):
    """Devices that share collectives; this one is number ``rank`` of ``size``. All call the same ones in one order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, tensor: Tensor) -> None:
        """Put the sum over the devices in the tensor's place."""

    def largest(self, tensor: Tensor) -> None:
        """Put the elementwise maximum over the devices in the tensor's place."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Everyone's tensor, of one shape, in order."""

    def scatter_sum(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum over the devices of ``parts[rank]``: a reduce-scatter of parts of one shape."""

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Everyone's ``parts[rank]``: an all-to-all of parts of one shape."""

    def objects(self, mine: Any) -> list[Any]:
        """Everyone's small Python object, in order."""


class Pending(Protocol):
    """A message on its way."""

    def wait(self) -> Any: ...

    def is_completed(self) -> bool: ...


class Line(Protocol):
    """Messages between devices: values and gradients (``backwards``) are streams of their own, each in order."""

    def send(self, tensor: Tensor, device: int, backwards: bool) -> Pending:
        """Begin to send; the tensor must stay as it is until that has completed."""

    def receive(self, buffer: Tensor, device: int, backwards: bool) -> Pending:
        """Begin to receive into the buffer."""


class ProcessGroup:
    """A group of processes, numbered as they are listed: torch itself numbers them by rank, and its collectives give
    and take in that order."""

    def __init__(self, process_group: dist.ProcessGroup):
        self.process_group = process_group
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        # places[i]: where torch has the i-th of those who are listed.
        self.places = list(range(self.size))

    def listed(self, members: Sequence[int]) -> ProcessGroup:
        """The group itself, numbered in the order of these ranks."""
        self.places = [sorted(members).index(member) for member in members]
        self.rank = self.places.index(dist.get_rank(self.process_group))
        return self

    def sum(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self.process_group)

    def largest(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.process_group)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        tensor = tensor.contiguous()
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor, group=self.process_group)
        return [found[place] for place in self.places]

    def scatter_sum(self, parts: Sequence[Tensor]) -> Tensor:
        # Not every backend has a reduce-scatter (gloo): an exchange moves the same bytes, and the sum is taken here.
        return torch.stack(self.exchange(parts)).sum(0)

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        sent = torch.empty((self.size, *parts[0].shape), dtype=parts[0].dtype, device=parts[0].device)
        for part, place in zip(parts, self.places, strict=True):
            sent[place] = part
        found = torch.empty_like(sent)
        dist.all_to_all_single(found, sent, group=self.process_group)
        return [found[place] for place in self.places]

    def objects(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self.process_group)
        return [found[place] for place in self.places]


class ProcessLine:
    """Messages between processes, whose ranks are devices. Two groups of all: two streams between each pair."""

    def __init__(self, values: dist.ProcessGroup, gradients: dist.ProcessGroup):
        self.values, self.gradients = values, gradients

    def send(self, tensor: Tensor, device: int, backwards: bool) -> Pending:
        return dist.isend(tensor, device, group=self.gradients if backwards else self.values)

    def receive(self, buffer: Tensor, device: int, backwards: bool) -> Pending:
        return dist.irecv(buffer, device, group=self.gradients if backwards else self.values)
