"""What stages of a list of blocks send each other: only to those that read it, whatever stands between in the list."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.cost.samples import NOTHING, Amount, amount
from partita.graph import Graph
from partita.graph.edges import block_edges
from partita.planner.joint.boundary import boundary_bytes, boundary_share
from partita.planner.joint.price import Pricing
from partita.planner.joint.sharp import Moved
from partita.planner.joint.space import Family
from partita.planner.joint.stage_ways import Places

# Of the edges (maker, reader) of stages: seconds forward and backward of each, and those between nodes.
Traffics = tuple[dict[tuple[int, int], Moved], frozenset[tuple[int, int]]]


@dataclass(frozen=True)
class Value:
    """A value between blocks, by number, and its gradient backwards."""

    maker: int
    readers: tuple[int, ...]
    forward: Amount
    backward: Amount


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
        size = amount(graph, name, pricing.kinds.item)
        found.append(Value(made, tuple(read), size, size if graph.tensor[name].gradient else NOTHING))
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
    _moved: dict[Places, Traffics] = field(default_factory=dict)

    @cached_property
    def leaving(self) -> np.ndarray:
        """[4, n, n + 1]: bytes of a turn that blocks i … j − 1 send on, and get back, each value once; and the same of
        what all samples share."""
        n, ratio = len(self.pricing.problem.graph.blocks), self.samples / self.pricing.problem.graph.samples
        found = np.zeros((4, n, n + 1))
        for value in self.values:
            each = [value.forward.growing * ratio, value.backward.growing * ratio]
            each += [value.forward.shared, value.backward.shared]
            found[:, : value.maker + 1, value.maker + 1 : max(value.readers) + 1] += np.array(each)[:, None, None]
        return found

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
        ports = [shape.port for shape in self.family.shapes]
        return np.array([boundary_share(*port, *port) for port in ports])

    def moved(self, places: Places) -> Traffics:
        """Seconds of each edge between stages, forward and backward; and the edges that go over the links between
        nodes. A climb asks several times of the same stages, for each length of the warm-up."""
        if places not in self._moved:
            self._moved[places] = self._found(places)
        return self._moved[places]

    def _found(self, places: Places) -> Traffics:
        stage_of = [0] * len(self.pricing.problem.graph.blocks)
        for at, place in enumerate(places):
            stage_of[place.start : place.stop] = [at] * (place.stop - place.start)
        sent: dict[tuple[int, int], tuple[Amount, Amount]] = {}
        for value in self.values:
            maker = stage_of[value.maker]
            for reader in {stage_of[block] for block in value.readers} - {maker}:
                down, up = sent.get((maker, reader), (NOTHING, NOTHING))
                sent[maker, reader] = down + value.forward, up + value.backward
        ratio, (latency, per_byte) = self.samples / self.pricing.problem.graph.samples, self.links
        nodes = [self.nodes(place.unit, place.shape) for place in places]
        far = frozenset(edge for edge in sent if len(nodes[edge[0]] | nodes[edge[1]]) > 1)
        found = {}
        for maker, reader in sorted(sent):
            crosses = int((maker, reader) in far)
            ports = [self.family.shapes[places[stage].shape].port for stage in (maker, reader)]
            down, up = sent[maker, reader]
            one, two = boundary_bytes(down, ratio, *ports), boundary_bytes(up, ratio, *reversed(ports))
            found[maker, reader] = (
                float((one > 0) * latency[crosses] + one * per_byte[crosses]),
                float((two > 0) * latency[crosses] + two * per_byte[crosses]),
            )
        return found, far

    def nodes(self, unit: int, shape: int) -> set[int]:
        """The nodes that a stage of a shape is on from a unit on."""
        first = self.pricing.first + unit * self.family.unit
        return set(self.pricing.cluster.node_of[first : first + self.family.shapes[shape].devices])
