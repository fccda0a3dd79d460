"""Values that cross the cut between two blocks, and parameters that more than one block uses.

A value that depends on no parameter (a mask, positions) is computed again in each stage from the batch and crosses
nothing. The rest is handed from stage to stage, also through stages that don't read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from partita.graph.model import Graph


@dataclass(frozen=True)
class Crossing:
    """Bytes at each of the n + 1 cuts (cut j is before block j) for the graph's samples, forward and backward; and how
    many values they are."""

    forward_bytes: np.ndarray
    backward_bytes: np.ndarray
    forward_values: np.ndarray
    backward_values: np.ndarray


def crossing(graph: Graph, item: Callable[[str], int]) -> Crossing:
    """What crosses every cut; the two ends are zero."""
    position = {block.name: index for index, block in enumerate(graph.blocks)}
    last: dict[str, int] = {}
    for op in graph.ops:
        for name in op.inputs:
            last[name] = position[op.block]
    depends = {tensor.name for tensor in graph.tensors if tensor.role == "parameter"}
    forward, backward, values, gradients = (np.zeros(len(graph.blocks) + 1) for _ in range(4))
    for op in graph.ops:
        if depends.isdisjoint(op.inputs):
            continue
        depends.update(op.outputs)
        made = position[op.block]
        for name in op.outputs:
            if (until := last.get(name, made)) > made:
                tensor = graph.tensor[name]
                size = tensor.elements * item(tensor.dtype)
                forward[made + 1 : until + 1] += size
                values[made + 1 : until + 1] += 1
                if tensor.gradient:
                    backward[made + 1 : until + 1] += size
                    gradients[made + 1 : until + 1] += 1
    return Crossing(forward, backward, values, gradients)
