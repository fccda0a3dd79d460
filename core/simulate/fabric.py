"""The ports that a message passes on its way from one device to another, and what each of them can take.

A device has a port out and a port in on each tier of links: a message to a device of the same node takes those inside
the node, any other those between nodes and, where a node's devices share their way out, the node's own two. Messages
that pass one port at the same time share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
        near, far = (link.reached_bytes_per_second for link in (self._near, self._far))
        shared = self.cluster.node_port_bytes_per_second
        node = () if shared is None else (shared,) * 2
        return (near, near, far, far) * self.cluster.devices + node * len(self.cluster.nodes)

    @cached_property
    def _near(self) -> Link:
        return self.cluster.link(False)

    @cached_property
    def _far(self) -> Link:
        """What a node's devices share is a port of the node."""
        return self.cluster.port

    def route(self, source: int, target: int) -> Route:
        """The way from one device to another."""
        if source == target:
            return Route((), 0.0)
        node_of, devices = self.cluster.node_of, self.cluster.devices
        leaves, enters = node_of[source], node_of[target]
        if leaves == enters:
            return Route((4 * source, 4 * target + 1), self._near.latency_seconds)
        own = (4 * source + 2, 4 * target + 3)
        shared = (4 * devices + 2 * leaves, 4 * devices + 2 * enters + 1)
        ports = own if self.cluster.node_bytes_per_second is None else own + shared
        return Route(ports, self._far.latency_seconds)
