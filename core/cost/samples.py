"""What devices that divide a block's samples among them exchange inside it: nothing, but for two things.

The gradient of a value that all samples share (positions, a bias by distance) is a sum over all of them, and so is a
loss. Neither grows with the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partita.graph.model import Graph


@dataclass(frozen=True)
class SharedValues:
    """All-reduces of a block whose samples are divided: their number and their bytes in each pass."""

    forward: int
    forward_bytes: float
    backward: int
    backward_bytes: float


def sampled(graph: Graph) -> frozenset[str]:
    """Inputs of the model and the values made from them: they differ from sample to sample."""
    found = {tensor.name for tensor in graph.tensors if tensor.role == "input"}
    for op in graph.ops:
        if not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return frozenset(found)


def shared_values(graph: Graph, block: str, item: Callable[[str], int], sampled: frozenset[str]) -> SharedValues:
    """What such a block sums over the devices that divide its samples; ``sampled`` as of the function above."""
    entered: dict[str, None] = {}
    summed: dict[str, None] = {}
    for op in graph.block_ops[block]:
        if sampled.isdisjoint(op.inputs):
            continue
        for name in op.inputs:
            tensor = graph.tensor[name]
            if name not in sampled and tensor.role == "value" and tensor.gradient:
                entered[name] = None
        summed.update((name, None) for name in op.outputs if not graph.tensor[name].shape)

    def size(names: dict[str, None]) -> float:
        return float(sum(graph.tensor[name].elements * item(graph.tensor[name].dtype) for name in names))

    return SharedValues(len(summed), size(summed), len(entered), size(entered))
