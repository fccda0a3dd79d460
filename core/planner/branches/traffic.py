"""What stages of a list of blocks send each other: only to those that read it, whatever stands between in the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.graph import Graph
from partita.graph.edges import block_edges
from partita.planner.joint.boundary import boundary_share
from partita.planner.joint.price import Pricing
from partita.planner.joint.sharp import Moved
from partita.planner.joint.space import Family, Shape
from partita.planner.joint.stage_ways import Places


@dataclass(frozen=True)
class Value:
    """A value between blocks, by number; bytes of the graph's samples, the gradient's backwards."""

    maker: int
    readers: tuple[int, ...]
    forward_bytes: float
    backward_bytes: float


def values(pricing: Pricing) -> tuple[Value, ...]:
    """All values that go from block to block."""
    graph = pricing.problem.graph
    readers: dict[str, tuple[int, list[int]]] = {}
    place = {block.name: index for index, block in enumerate(graph.blocks)}
    for (maker, reader), names in block_edges(graph).items():
        for name in names:
            readers.setdefault(name, (place[maker], []))[1].append(place[reader])
    found = []
    for name, (made, read) in readers.items():
        tensor = graph.tensor[name]
        size = float(tensor.elements * pricing.kinds.item(tensor.dtype))
        found.append(Value(made, tuple(read), size, size if tensor.gradient else 0.0))
    return tuple(found)


def block_pairs(graph: Graph) -> list[tuple[int, int]]:
    """The pairs (maker, reader) of blocks, by number."""
    place = {block.name: index for index, block in enumerate(graph.blocks)}
    return [(place[maker], place[reader]) for maker, reader in block_edges(graph)]


@dataclass(frozen=True)
class Traffic:
    """The transfers between stages of a family, for turns of so many samples."""

    pricing: Pricing
    family: Family
    samples: int
    values: tuple[Value, ...]

    @cached_property
    def leaving(self) -> tuple[np.ndarray, np.ndarray]:
        """[n, n + 1] each: bytes of a turn that blocks i … j − 1 send on, and get back: each value once."""
        n, ratio = len(self.pricing.problem.graph.blocks), self.samples / self.pricing.problem.graph.samples
        forward, backward = np.zeros((n, n + 1)), np.zeros((n, n + 1))
        for value in self.values:
            where = np.s_[: value.maker + 1, value.maker + 1 : max(value.readers) + 1]
            forward[where] += value.forward_bytes * ratio
            backward[where] += value.backward_bytes * ratio
        return forward, backward

    @cached_property
    def links(self) -> tuple[np.ndarray, np.ndarray]:
        """[2] each, inside a node and between nodes: seconds of a message, and of a byte."""
        links = [self.pricing.cluster.link(crosses) for crosses in (False, True)]
        return (
            np.array([link.latency_seconds for link in links]),
            np.array([1 / link.reached_bytes_per_second for link in links]),
        )

    @cached_property
    def own_share(self) -> np.ndarray:
        """[K]: the part of a turn's samples that a device sends to a stage of its own shape."""
        return np.array([self._share(shape, shape) for shape in self.family.shapes])

    @staticmethod
    def _share(one: Shape, other: Shape) -> float:
        return boundary_share(one.dp, one.width, other.dp, other.width)

    def moved(self, places: Places) -> dict[tuple[int, int], Moved]:
        """Seconds of each edge between stages, forward and backward."""
        stage_of = [0] * len(self.pricing.problem.graph.blocks)
        for at, place in enumerate(places):
            stage_of[place.start : place.stop] = [at] * (place.stop - place.start)
        sent: dict[tuple[int, int], list[float]] = {}
        for value in self.values:
            maker = stage_of[value.maker]
            for reader in {stage_of[block] for block in value.readers} - {maker}:
                size = sent.setdefault((maker, reader), [0.0, 0.0])
                size[0] += value.forward_bytes
                size[1] += value.backward_bytes
        ratio, (latency, per_byte) = self.samples / self.pricing.problem.graph.samples, self.links
        nodes = [self._nodes(place.unit, place.shape) for place in places]
        found = {}
        for (maker, reader), size in sorted(sent.items()):
            crosses = int(len(nodes[maker] | nodes[reader]) > 1)
            share = self._share(self.family.shapes[places[maker].shape], self.family.shapes[places[reader].shape])
            back = self._share(self.family.shapes[places[reader].shape], self.family.shapes[places[maker].shape])
            one, two = size[0] * share, size[1] * back
            found[maker, reader] = (
                float((one > 0) * latency[crosses] + one * ratio * per_byte[crosses]),
                float((two > 0) * latency[crosses] + two * ratio * per_byte[crosses]),
            )
        return found

    def _nodes(self, unit: int, shape: int) -> set[int]:
        first = self.pricing.first + unit * self.family.unit
        return set(self.pricing.cluster.node_of[first : first + self.family.shapes[shape].devices])


def behind(stages: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """For each stage how many lie behind it on the longest path."""
    found = [0] * stages
    for maker, reader in sorted(edges, reverse=True):
        found[maker] = max(found[maker], 1 + found[reader])
    return found
