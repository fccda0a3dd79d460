"""Values that cross the cut between two blocks, and parameters that more than one block uses.

A value that depends on no parameter (a mask, positions) is computed again in each stage from the batch and crosses
nothing. The rest is handed from stage to stage, also through stages that don't read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from partita.cost.samples import NOTHING, Amount, amount
from partita.graph.edges import block_edges
from partita.graph.model import Graph


@dataclass(frozen=True)
class Crossing:
    """Bytes at each of the n + 1 cuts (cut j is before block j), forward and backward; how many values they are; and
    what each of the n blocks reads of others."""

    forward: Amount
    backward: Amount
    forward_values: np.ndarray
    backward_values: np.ndarray
    entering: Amount

    @property
    def forward_bytes(self) -> np.ndarray:
        """Of the graph's samples."""
        found: np.ndarray = self.forward.of(1.0)
        return found

    @property
    def backward_bytes(self) -> np.ndarray:
        """Of the graph's samples."""
        found: np.ndarray = self.backward.of(1.0)
        return found


def crossing(graph: Graph, item: Callable[[str], int]) -> Crossing:
    """What crosses every cut, and what each block reads; the two ends are zero."""
    position = {block.name: index for index, block in enumerate(graph.blocks)}
    last: dict[str, int] = {}
    for op in graph.ops:
        for name in op.inputs:
            last[name] = position[op.block]
    depends = {tensor.name for tensor in graph.tensors if tensor.role == "parameter"}
    values, gradients, *each = (np.zeros(len(graph.blocks) + 1) for _ in range(6))
    forward, backward = Amount(*each[:2]), Amount(*each[2:])
    for op in graph.ops:
        if depends.isdisjoint(op.inputs):
            continue
        depends.update(op.outputs)
        made = position[op.block]
        for name in op.outputs:
            if (until := last.get(name, made)) > made:
                size, cuts = amount(graph, name, item), slice(made + 1, until + 1)
                trains = graph.tensor[name].gradient
                for found, count in ((forward, values), (backward, gradients))[: 1 + trains]:
                    found.growing[cuts] += size.growing
                    found.shared[cuts] += size.shared
                    count[cuts] += 1
    return Crossing(forward, backward, values, gradients, _entering(graph, item))


def _entering(graph: Graph, item: Callable[[str], int]) -> Amount:
    """[n]: what each block reads of others, each value once. It is what a block holds that is computed again."""
    read: dict[str, dict[str, Amount]] = {block.name: {} for block in graph.blocks}
    for (_, reader), names in block_edges(graph).items():
        read[reader].update((name, amount(graph, name, item)) for name in names)
    each = [sum(values.values(), NOTHING) for values in read.values()]
    return Amount(np.array([one.growing for one in each]), np.array([one.shared for one in each]))
