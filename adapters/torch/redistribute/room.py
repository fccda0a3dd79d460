"""Memory that the steps of a redistribution take turns in.

The arrays of one part of a large array are made and dropped in their hundreds. Allocators that align what they give out
(glibc's among them) don't find the gaps again that such arrays leave, and a process grows by about as much as it has
moved. So all of it is taken at once, and kept to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

# Where an array begins, in elements: vector instructions are slow across cache lines.
_ALIGNED = 64


class Room:
    """Gives out parts of a flat tensor until it is ``clear``\\ ed; with none, or no space left, new memory."""

    def __init__(self, like: Tensor, memory: Tensor | None = None):
        self.like, self.memory, self.used = like, memory, 0

    def empty(self, shape: Sequence[int]) -> Tensor:
        """A contiguous tensor of any values."""
        count = prod(shape)
        if self.memory is None or self.used + count > self.memory.numel():
            return self.like.new_empty(shape)
        found = self.memory[self.used : self.used + count].view(shape)
        self.used += -(-count // _ALIGNED) * _ALIGNED
        return found

    def contiguous(self, tensor: Tensor) -> Tensor:
        """The tensor, or a copy of it that is one run of memory."""
        return tensor if tensor.is_contiguous() else self.empty(tensor.shape).copy_(tensor)

    def clear(self) -> None:
        """What was given out is no longer needed."""
        self.used = 0
