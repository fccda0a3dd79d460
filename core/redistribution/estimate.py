"""What a direct step takes at least, seen from those who receive, on a mesh whose axes lie inside nodes or across them.

A device's box is a product of intervals, one a dim, and what a node holds is a product too: of unions of intervals.
So what a device lacks, and what its node lacks, follow from one number a dim and device; those numbers depend on the
axes that cut the dim before and after, and occur again and again in a search. Of many devices a few are looked at,
which can only make less of what is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from partita.redistribution.chunks import chunk, pieces_met
from partita.redistribution.price import latencies
from partita.redistribution.space import Axes, Space, State

SAMPLE = 192


@dataclass(frozen=True)
class Needs:
    """Of each device looked at: elements from its node, from other nodes, messages of both kinds; elements that its
    node lacks; and whether it has some of what it wants."""

    near: np.ndarray
    far: np.ndarray
    near_messages: np.ndarray
    far_messages: np.ndarray
    node: np.ndarray
    own: np.ndarray


class Estimate:
    """Needs between layouts of one space."""

    def __init__(self, space: Space):
        self.space, mesh = space, space.mesh
        places = len(mesh.devices)
        # A stride that shares no factor with the places meets all coordinates of every axis.
        stride = next(s for s in range(max(1, places // SAMPLE), 2 * places + 2) if np.gcd(s, places) == 1)
        sample = np.sort(np.arange(min(SAMPLE, places)) * stride % places) if places > SAMPLE else np.arange(places)
        self.coordinates = [mesh.coordinates[name][sample] for name in space.names]
        self.count = len(sample)
        self.tiers = any(space.crossing)
        self.inside = frozenset(axis for axis, crosses in enumerate(space.crossing) if not crosses)
        self.node_devices = space.size(tuple(self.inside))
        nodes = space.network.nodes[np.asarray(mesh.devices)]
        # Otherwise a node has devices of the mesh that no axis leads to, and what it holds is no product.
        self.aligned = bool((np.bincount(nodes)[nodes] == self.node_devices).all())
        self._pieces: dict[tuple[int, Axes, bool], tuple[np.ndarray, np.ndarray]] = {}
        self._common: dict[tuple[int, Axes, Axes], tuple[np.ndarray, ...]] = {}

    def needs(self, before: State, after: State) -> Needs:
        """What devices lack of ``after`` where they have ``before``; both are parts of the same sum."""
        own, near, met, met_near, wanted, node, node_wanted = np.ones((7, self.count))
        for dim, (one, two) in enumerate(zip(before[0], after[0], strict=True)):
            found = self._common_of(dim, one, two)
            own, near, met, met_near = own * found[0], near * found[1], met * found[2], met_near * found[3]
            wanted, node, node_wanted = wanted * found[4], node * found[5], node_wanted * found[6]
        return Needs(near - own, wanted - near, met_near - (own > 0), met - met_near, node_wanted - node, own > 0)

    def direct(self, before: State, after: State) -> tuple[float, float]:
        """Elements and seconds of a direct step, at least."""
        needs, network = self.needs(before, after), self.space.network
        item = self.space.item_bytes
        ports = ((needs.near, needs.near_messages, network.near), (needs.far, needs.far_messages, network.port))
        seconds = 0.0
        for elements, messages, link in ports:
            taken = elements * (item / link.reached_bytes_per_second) + latencies(messages) * link.latency_seconds
            seconds = max(seconds, float(taken.max(initial=0.0)))
        return float((needs.near + needs.far).max(initial=0.0)), max(seconds, self._node_seconds(needs))

    def collectives(self, before: State, after: State) -> tuple[float, float]:
        """Elements and seconds of collectives alone, at least, where sums stay.

        Each of them uses links inside nodes or between, one kind at a time. Those between bring at least what a node
        lacks, to each of its devices an equal share at best; what more a device lacks comes faster from inside.
        """
        needs, network = self.needs(before, after), self.space.network
        item = self.space.item_bytes
        lacks = float((needs.near + needs.far).max(initial=0.0))
        if not lacks:
            return 0.0, 0.0
        rounds, near, far = _rounds(needs), network.near, network.far
        if not self.tiers:
            return lacks, lacks * item / near.reached_bytes_per_second + rounds * near.latency_seconds
        least = rounds * min(near.latency_seconds, far.latency_seconds)
        across = float(needs.node.max(initial=0.0)) / self.node_devices
        if across:
            least += max(0.0, far.latency_seconds - near.latency_seconds)
        faster = max(near.reached_bytes_per_second, far.reached_bytes_per_second)
        return lacks, least + across * item / far.reached_bytes_per_second + (lacks - across) * item / faster

    def any_way(self, before: State, after: State) -> float:
        """Seconds of any steps, at least, where the target is no sum."""
        needs, network = self.needs(before, after), self.space.network
        lacks = float((needs.near + needs.far).max(initial=0.0))
        if not lacks:
            return 0.0
        together = network.near.reached_bytes_per_second
        together += network.port.reached_bytes_per_second if self.tiers else 0.0
        latency = min(network.near.latency_seconds, network.far.latency_seconds)
        # A direct step has messages on two ports at once.
        rounds = _rounds(needs) - 1 if self.tiers else _rounds(needs)
        seconds = lacks * self.space.item_bytes / together + max(1, rounds) * latency
        return max(seconds, self._node_seconds(needs))

    def _node_seconds(self, needs: Needs) -> float:
        """A node's devices get together what the node lacks."""
        most = float(needs.node.max(initial=0.0))
        if not most:
            return 0.0
        network = self.space.network
        ports = self.node_devices * network.port.reached_bytes_per_second
        ports = min(ports, network.node_bytes_per_second or ports)
        return most * self.space.item_bytes / ports + network.far.latency_seconds

    def _common_of(self, dim: int, one: Axes, two: Axes) -> tuple[np.ndarray, ...]:
        key = dim, one, two
        if key not in self._common:
            self._common[key] = self._found(dim, one, two)
        return self._common[key]

    def _found(self, dim: int, one: Axes, two: Axes) -> tuple[np.ndarray, ...]:
        """In one dim: overlap with the device's own interval, with its node's; intervals met anywhere, in the node; the
        length wanted; the overlap of the node's intervals with those that it wants; the length of these."""
        start, stop = (ends[0] for ends in self._intervals(dim, two, False))
        own = _overlap(self._intervals(dim, one, False), start, stop)[0]
        met = pieces_met(self.space.shape[dim], [self.space.sizes[axis] for axis in one], start, stop)
        wanted = stop - start
        if not self.tiers:
            return own, wanted, met, met, wanted, wanted, wanted
        has = self._intervals(dim, one, True)
        shared = _overlap(has, start, stop)
        wants = self._intervals(dim, two, True)
        node = _overlap(has, wants[0][:, None], wants[1][:, None]).sum(axis=(0, 1))
        node_wanted = (wants[1] - wants[0]).sum(axis=0)
        return own, shared.sum(axis=0), met, (shared > 0).sum(axis=0), wanted, node, node_wanted

    def _intervals(self, dim: int, axes: Axes, node: bool) -> tuple[np.ndarray, np.ndarray]:
        """Starts and stops in a dim, ``[intervals, devices]``: the device's own, or all of its node."""
        key = dim, axes, node
        if key not in self._pieces:
            start = np.zeros((1, self.count), np.int64)
            stop = np.full((1, self.count), self.space.shape[dim])
            for axis in axes:
                size = self.space.sizes[axis]
                every = np.arange(size)[:, None, None] if node and axis in self.inside else self.coordinates[axis]
                start, stop = (ends.reshape(-1, self.count) for ends in chunk(start, stop, every, size))
            self._pieces[key] = start, stop
        return self._pieces[key]


def _rounds(needs: Needs) -> int:
    """A step of n latencies brings a device what at most 2ⁿ had: at least so many until it has met all its tiles."""
    met = needs.near_messages + needs.far_messages + needs.own
    return max(1, ceil(log2(float(met.max()))))


def _overlap(intervals: tuple[np.ndarray, np.ndarray], start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    return np.clip(np.minimum(intervals[1], stop) - np.maximum(intervals[0], start), 0, None)
