"""The costs of a model's blocks that are known already: whoever prices many plans asks for each once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from partita.cost.alike import Alike
from partita.cost.block import BlockCost, divided_cost
from partita.cost.division import Along, Division, along_sequence
from partita.graph.model import Graph


class BlockCosts:
    """By the block that stands for its kind and its division: neither the cluster nor the batch matters. ``item`` gives
    the bytes of a dtype's element."""

    def __init__(self, graph: Graph, groups: Alike, item: Callable[[str], int]):
        self.graph, self.groups, self.item = graph, groups, item
        self._found: dict[tuple[int, Division], BlockCost] = {}

    @cached_property
    def along(self) -> Along:
        """Values with a sequence."""
        return along_sequence(self.graph)

    def of(self, kind: int, division: Division) -> BlockCost:
        """The cost of the blocks that are alike with block number ``kind``, for the graph's samples."""
        key = kind, division
        if key not in self._found:
            along = self.along if division.sequence * division.context > 1 else {}
            name, classes = self.graph.blocks[kind].name, self.groups.classes[kind]
            self._found[key] = divided_cost(self.graph, name, classes, division, self.item, along)
        return self._found[key]
