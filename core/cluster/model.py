"""The machine: nodes of equal devices, two tiers of links, and the figures that costs are computed from.

Nodes may hold different numbers of devices. A device's id is its global rank: node after node, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from partita.errors import ClusterError

if TYPE_CHECKING:
    from partita.profile.measured import Measured


@dataclass(frozen=True)
class Device:
    """One accelerator. ``peak_flops`` by dtype; efficiencies are fractions of the peak that real ops reach.

    ``matmul_efficiency`` is a curve: pairs (GFLOP of the op at least, fraction), largest first. ``op_seconds`` is the
    least time between two ops (the host issues them). ``framework_bytes`` is taken before any tensor exists.

    ``on_host``: the device is a process of the machine itself, which issues an op and then carries it out, so the two
    times add up. ``transcendental_seconds`` is what an element of exp, tanh and their like takes where arithmetic, not
    memory, is what binds. ``host_bytes_per_second`` is what goes to the host's memory, or comes back; 0: not known.

    ``measured``: a profile of this device, which goes before all other figures where it has a block.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bytes_per_second: float
    matmul_efficiency: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    attention_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    op_seconds: float = 0.0
    framework_bytes: int = 0
    on_host: bool = False
    transcendental_seconds: float = 0.0
    host_bytes_per_second: float = 0.0
    measured: Measured | None = None


@dataclass(frozen=True)
class Link:
    """One tier of links: what one device sends in each direction, the fraction of it that is reached, the latency."""

    bytes_per_second: float
    latency_seconds: float = 0.0
    efficiency: float = 1.0

    @property
    def reached_bytes_per_second(self) -> float:
        return self.bytes_per_second * self.efficiency


@dataclass(frozen=True)
class Cluster:
    """Nodes (their device counts), the device that all of them hold, the link inside a node and the one between.

    ``cores`` are those that all devices share where devices are processes; None: every device computes by itself.
    ``node_bytes_per_second`` is what all devices of a node together send to other nodes; None: each device has its own
    port, as fast as ``inter_node`` says.
    """

    name: str
    nodes: tuple[int, ...]
    device: Device
    intra_node: Link
    inter_node: Link
    cores: int | None = None
    node_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        if not self.nodes or any(count < 1 for count in self.nodes):
            raise ClusterError(
                f'cluster "{self.name}" has nodes of {list(self.nodes)} devices; every node needs at least 1 device'
            )

    @property
    def devices(self) -> int:
        return sum(self.nodes)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each device."""
        return tuple(node for node, count in enumerate(self.nodes) for _ in range(count))

    @cached_property
    def local_ranks(self) -> tuple[int, ...]:
        """The rank of each device inside its own node (not the rank modulo anything: nodes may differ)."""
        return tuple(local for count in self.nodes for local in range(count))

    @property
    def threads(self) -> int:
        """Threads of each device: the cores are dealt out evenly; where they don't suffice, each process has one."""
        return 1 if self.cores is None else max(1, self.cores // self.devices)

    def slowdown(self, busy: float) -> float:
        """How many times longer everything takes while ``busy`` devices (a mean over time) want a core at once."""
        return 1.0 if self.cores is None else max(1.0, busy / self.cores)

    def link(self, crosses_nodes: bool, beside: int = 1) -> Link:
        """The slowest tier of a group, all of a node's devices sending at once. Processes that wait for a core answer
        late and copy slowly.

        ``beside``: the group's members in each of its nodes. What a ring sends from one node to the next it divides
        over their ports, and inside a node it passes all of it on.
        """
        link = self.inter_node if crosses_nodes else self.intra_node
        if crosses_nodes:
            port = link.bytes_per_second
            if self.node_bytes_per_second is not None:
                port = min(port, self.node_bytes_per_second / max(self.nodes))
            inside = self.intra_node.reached_bytes_per_second / link.efficiency
            link = replace(link, bytes_per_second=port if beside == 1 else max(port, min(port * beside, inside)))
        slow = self.slowdown(self.devices)
        return Link(link.bytes_per_second / slow, link.latency_seconds * slow, link.efficiency)

    @property
    def port(self) -> Link:
        """A device's own way to other nodes, as if it alone of its node used it."""
        return replace(self, node_bytes_per_second=None).link(True)

    @property
    def node_port_bytes_per_second(self) -> float | None:
        """What a node's devices reach together on the way to other nodes; None: each has its own port alone."""
        if self.node_bytes_per_second is None:
            return None
        return self.node_bytes_per_second * self.inter_node.efficiency / self.slowdown(self.devices)

    def resized(self, devices: int) -> Cluster:
        """The same kind of cluster with that many devices: one node grows; of several, none exceeds the largest."""
        if len(self.nodes) == 1:
            nodes: tuple[int, ...] = (devices,)
        else:
            full, rest = divmod(devices, max(self.nodes))
            nodes = (max(self.nodes),) * full + ((rest,) if rest else ())
        return replace(self, nodes=nodes)
