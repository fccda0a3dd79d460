"""What grows with the samples of a turn, and what all samples share: positions, a bias by distance, a loss.

A shared value is as large in every turn, and as large on each copy. Devices that divide a block's samples among them
exchange nothing inside it but its gradient, which is a sum over all of them, and a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from partita.graph.model import Graph


@dataclass(frozen=True)
class Amount:
    """Bytes for the graph's samples, numbers or arrays: ``growing`` with the samples, and ``shared`` by them."""

    growing: Any
    shared: Any

    def of(self, ratio: Any, times: Any = 1.0) -> Any:
        """For ``ratio`` times the graph's samples, and so many times what they share."""
        return self.growing * ratio + self.shared * times

    def __getitem__(self, at: Any) -> Amount:
        return Amount(self.growing[at], self.shared[at])

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.growing + other.growing, self.shared + other.shared)


NOTHING = Amount(0.0, 0.0)


def amount(graph: Graph, name: str, item: Callable[[str], int]) -> Amount:
    """A tensor's bytes; ``item``: those of an element of a dtype."""
    tensor = graph.tensor[name]
    size = float(tensor.elements * item(tensor.dtype))
    return Amount(size, 0.0) if name in graph.sampled else Amount(0.0, size)


@dataclass(frozen=True)
class SharedValues:
    """All-reduces of a block whose samples are divided: their number and their bytes in each pass."""

    forward: int
    forward_bytes: float
    backward: int
    backward_bytes: float


def shared_values(graph: Graph, block: str, item: Callable[[str], int]) -> SharedValues:
    """What such a block sums over the devices that divide its samples."""
    entered: dict[str, None] = {}
    summed: dict[str, None] = {}
    for op in graph.block_ops[block]:
        if graph.sampled.isdisjoint(op.outputs):
            continue
        for name in op.inputs:
            tensor = graph.tensor[name]
            if name not in graph.sampled and tensor.role == "value" and tensor.gradient:
                entered[name] = None
        summed.update((name, None) for name in op.outputs if not graph.tensor[name].shape)

    def size(names: dict[str, None]) -> float:
        return float(sum(graph.tensor[name].elements * item(graph.tensor[name].dtype) for name in names))

    return SharedValues(len(summed), size(summed), len(entered), size(entered))
