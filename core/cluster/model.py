"""The machine: nodes of devices, two tiers of links, and the figures that costs are computed from.

Nodes may hold different numbers of devices, and devices of different kinds; inside a node they are equal. A device's id
is its global rank: node after node, in order. Nobody asks a cluster for "the" device: who needs one for several devices
asks for the weakest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from partita.cluster.unlike import slowest, weakest
from partita.errors import ClusterError, listed

if TYPE_CHECKING:
    from partita.plan import Profile
    from partita.profile.measured import Measured

Way = Literal["inside", "between", "alone"]


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
class Kind:
    """What a node is made of: its devices, the link between them, and the one to other nodes.

    ``node_bytes_per_second`` is what all devices of the node together send to other nodes; None: each device has its
    own port, as fast as ``inter_node`` says.
    """

    device: Device
    intra_node: Link
    inter_node: Link
    node_bytes_per_second: float | None = None


@dataclass(frozen=True)
class Cluster:
    """Nodes: their device counts, and what each is made of.

    ``cores`` are those that all devices share where devices are processes; None: every device computes by itself.
    ``profile``: where the figures that were measured come from.
    """

    name: str
    nodes: tuple[int, ...]
    kinds: tuple[Kind, ...]
    cores: int | None = None
    profile: Profile | None = None

    def __post_init__(self) -> None:
        if not self.nodes or any(count < 1 for count in self.nodes):
            raise ClusterError(
                f'cluster "{self.name}" has nodes of {list(self.nodes)} devices; every node needs at least 1 device'
            )
        assert len(self.kinds) == len(self.nodes), "every node has a kind"

    @classmethod
    def of(
        cls, name: str, nodes: Iterable[int], device: Device, intra_node: Link, inter_node: Link,
        cores: int | None = None, node_bytes_per_second: float | None = None,
    ) -> Cluster:  # fmt: skip
        """A cluster whose nodes are all of one kind."""
        counts = tuple(nodes)
        return cls(name, counts, (Kind(device, intra_node, inter_node, node_bytes_per_second),) * len(counts), cores)

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

    @cached_property
    def different_kinds(self) -> tuple[Kind, ...]:
        """Each kind of node once, in the order of the nodes."""
        found: list[Kind] = []
        for kind in {id(kind): kind for kind in self.kinds}.values():
            if kind not in found:
                found.append(kind)
        return tuple(found)

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """The place of each node's kind among the different ones."""
        places = {id(kind): self.different_kinds.index(kind) for kind in self.kinds}
        return tuple(places[id(kind)] for kind in self.kinds)

    @property
    def kind(self) -> Kind:
        """The kind of every node, of a cluster that has one alone."""
        (only,) = self.different_kinds
        return only

    @property
    def device(self) -> Device:
        """The device of every node, of a cluster that has one alone. For any cluster: ``weakest``, ``device_at``."""
        (only,) = self.different_devices()
        return only

    def device_at(self, device: int) -> Device:
        """What the device with that id is."""
        return self.kinds[self.node_of[device]].device

    def makeup(self, devices: Iterable[int] | None = None) -> frozenset[tuple[int, int]]:
        """Of which nodes the devices with these ids, or all, are: (place among ``different_kinds``, its device count).

        Devices of one makeup have one ``weakest`` and the same links: a key for what is priced once.
        """
        if devices is None or len(self._whole_makeup) == 1:
            return self._whole_makeup
        nodes = {self.node_of[device] for device in devices}
        return frozenset((self.kind_of[node], self.nodes[node]) for node in nodes)

    def kinds_among(self, devices: Iterable[int] | None = None) -> tuple[Kind, ...]:
        """The different kinds of the nodes of the devices with these ids, or of all."""
        return tuple(self.different_kinds[place] for place in sorted({place for place, _ in self.makeup(devices)}))

    def different_devices(self, devices: Iterable[int] | None = None) -> tuple[Device, ...]:
        """Each device that is among those with these ids, or in the cluster, once, in the order of the nodes."""
        found: list[Device] = []
        for kind in self.kinds_among(devices):
            if kind.device not in found:
                found.append(kind.device)
        return tuple(found)

    @property
    def device_names(self) -> str:
        """``h200``; where nodes differ ``8 h200 and 16 a100-80gb``."""
        counts: dict[str, int] = {}
        for count, kind in zip(self.nodes, self.kinds, strict=True):
            counts[kind.device.name] = counts.get(kind.device.name, 0) + count
        return next(iter(counts)) if len(counts) == 1 else listed(f"{count} {name}" for name, count in counts.items())

    def weakest(self, devices: Iterable[int] | None = None) -> Device:
        """What stands for the devices with these ids where they work in step, or for all of the cluster: as slow as the
        slowest of them, with the memory of the smallest."""
        places = frozenset(place for place, _ in self.makeup(devices))
        if places not in self._weakest:
            self._weakest[places] = weakest(self.different_devices(devices))
        return self._weakest[places]

    @cached_property
    def _weakest(self) -> dict[frozenset[int], Device]:
        return {}

    def slowdown(self, busy: float) -> float:
        """How many times longer everything takes while ``busy`` devices (a mean over time) want a core at once."""
        return 1.0 if self.cores is None else max(1.0, busy / self.cores)

    def link(self, crosses_nodes: bool, devices: Iterable[int] | None = None, beside: int = 1) -> Link:
        """The slowest tier of a group, all of a node's devices sending at once.

        The nodes are those of the devices with these ids, or all of the cluster: between unlike nodes the slower of two
        ways binds. ``beside``: the group's members in each of its nodes. What a ring sends from one node to the next it
        divides over their ports, and inside a node it passes all of it on. Processes that wait for a core answer late
        and copy slowly.
        """
        return self._slowest("between" if crosses_nodes else "inside", devices, beside)

    def port(self, devices: Iterable[int] | None = None) -> Link:
        """The slowest of the devices' own ways to other nodes: what one device has where the others of its node are
        silent."""
        return self._slowest("alone", devices)

    def node_port_bytes_per_second(self, devices: Iterable[int] | None = None) -> float | None:
        """What a node's devices reach together on the way to other nodes, the least of the nodes of these; None: each
        has its own port alone."""
        shared = [
            kind.node_bytes_per_second * kind.inter_node.efficiency / self.slowdown(self.devices)
            for kind in self.kinds_among(devices)
            if kind.node_bytes_per_second is not None
        ]
        return min(shared, default=None)

    def _slowest(self, way: Way, devices: Iterable[int] | None, beside: int = 1) -> Link:
        key = (way, beside, self.makeup(devices))
        if key not in self._links:
            link = slowest([self._link_of(way, place, count, beside) for place, count in sorted(key[2])])
            slow = self.slowdown(self.devices)
            self._links[key] = Link(link.bytes_per_second / slow, link.latency_seconds * slow, link.efficiency)
        return self._links[key]

    def _link_of(self, way: Way, place: int, count: int, beside: int) -> Link:
        """The link of a node of that kind with so many devices."""
        kind = self.different_kinds[place]
        if way == "inside":
            return kind.intra_node
        if way == "alone":
            return kind.inter_node
        port = kind.inter_node.bytes_per_second
        if kind.node_bytes_per_second is not None:
            port = min(port, kind.node_bytes_per_second / count)
        if beside > 1:
            inside = kind.intra_node.reached_bytes_per_second / kind.inter_node.efficiency
            port = max(port, min(port * beside, inside))
        return replace(kind.inter_node, bytes_per_second=port)

    @cached_property
    def _links(self) -> dict[tuple[Way, int, frozenset[tuple[int, int]]], Link]:
        return {}

    @cached_property
    def _whole_makeup(self) -> frozenset[tuple[int, int]]:
        return frozenset(zip(self.kind_of, self.nodes, strict=True))

    def with_kinds(self, change: Callable[[Kind], Kind]) -> Cluster:
        """The cluster with another kind in place of each."""
        changed = [change(kind) for kind in self.different_kinds]
        return replace(self, kinds=tuple(changed[place] for place in self.kind_of))

    def resized(self, devices: int) -> Cluster:
        """The cluster with that many devices.

        One node grows or shrinks; of several the first ones are kept, and further ones are like the largest of the last
        one's kind.
        """
        if len(self.nodes) == 1:
            return replace(self, nodes=(devices,))
        last = self.kind_of[-1]
        step = max(count for count, place in zip(self.nodes, self.kind_of, strict=True) if place == last)
        nodes: list[int] = []
        while (left := devices - sum(nodes)) > 0:
            nodes.append(min(left, self.nodes[len(nodes)] if len(nodes) < len(self.nodes) else step))
        kinds = (*self.kinds, *(self.kinds[-1],) * len(nodes))[: len(nodes)]
        return replace(self, nodes=tuple(nodes), kinds=kinds)
