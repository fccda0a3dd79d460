"""The ports that a message passes on its way from one device to another, and what each of them can take.

A device has a port out and a port in on each tier of links: a message to a device of the same node takes those inside
the node, any other those between nodes and, where a node's devices share their way out, the node's own two. Messages
that pass one port at the same time share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

from partita.cluster import Cluster, Link


@dataclass(frozen=True)
class Route:
    """The numbers of the ports that a message passes, and its latency."""

    ports: tuple[int, ...]
    latency_seconds: float


@dataclass(frozen=True)
class Fabric:
    """The ports of a cluster: four for each device, two for each node after those."""

    cluster: Cluster

    @cached_property
    def bytes_per_second(self) -> tuple[float, ...]:
        """What each port can take: of a device in and out inside its node, out and in between nodes; of a node."""
        own = [link.reached_bytes_per_second for links in self._links for link in links]
        shared = [inf if speed is None else speed for speed in self._shared]
        return (*(speed for speed in own for _ in range(2)), *(speed for speed in shared for _ in range(2)))

    @cached_property
    def _links(self) -> tuple[tuple[Link, Link], ...]:
        """Of each device the link inside its node and its own port to others; what a node's devices share is a port
        of the node."""
        cluster = self.cluster
        return tuple((cluster.link(False, (device,)), cluster.port((device,))) for device in range(cluster.devices))

    @cached_property
    def _shared(self) -> tuple[float | None, ...]:
        """What each node's devices share; None: nothing."""
        firsts = (sum(self.cluster.nodes[:node]) for node in range(len(self.cluster.nodes)))
        return tuple(self.cluster.node_port_bytes_per_second((first,)) for first in firsts)

    def route(self, source: int, target: int) -> Route:
        """The way from one device to another."""
        if source == target:
            return Route((), 0.0)
        cluster = self.cluster
        leaves, enters = cluster.node_of[source], cluster.node_of[target]
        if leaves == enters:
            return Route((4 * source, 4 * target + 1), self._links[source][0].latency_seconds)
        ports = [4 * source + 2, 4 * target + 3]
        for place, node in enumerate((leaves, enters)):
            if self._shared[node] is not None:
                ports.append(4 * cluster.devices + 2 * node + place)
        return Route(tuple(ports), max(self._links[device][1].latency_seconds for device in (source, target)))
