"""What a step costs: elements that each device sends and receives, and seconds.

Elements are those of the step's exchange. An all-reduce is a reduce-scatter and an all-gather of nearly equal pieces.

Seconds of a collective are those of ``cost.collective``, which the planner and the simulator go by too: one link, the
slowest that a group spans, at its bandwidth, and ⌈log2 n⌉ latencies. Where parts are uneven, each round of the ring is
as long as its largest part. A permutation is one message of each device.

In a direct step every device has two ports, one to the devices of its node and one to other nodes, as in
``simulate.fabric``; both are used at the same time, in both directions. On each it takes the bytes over the bandwidth,
and as many latencies as an all-to-all among as many devices, which is what it is, with parts of unequal sizes. What a
node's devices share is a port of the node. The step takes as long as its slowest port. A device gets a message for each
tile that it has to do with; where the readers of a tile can't be dealt out evenly to those who hold it, every holder
sends each of them a part.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from partita.cluster.model import Cluster, Link
from partita.cost.collective import SECONDS, Collective, point_to_point_seconds
from partita.redistribution.answer import Priced
from partita.redistribution.array_type import ArrayType
from partita.redistribution.chunks import pieces_met
from partita.redistribution.mesh import Mesh
from partita.redistribution.steps import LOCAL, Op, Step


@dataclass(frozen=True)
class Network:
    """What of a cluster a redistribution's price depends on: the node of each device, and links.

    ``far`` is the link between nodes with all of a node's devices at work, ``port`` that of one device alone;
    ``node_bytes_per_second`` is what a node's devices share; None: nothing.
    """

    node_of: tuple[int, ...]
    near: Link
    far: Link
    port: Link
    node_bytes_per_second: float | None

    @classmethod
    def of(cls, cluster: Cluster, devices: Collection[int] | None = None) -> Network:
        """That of the devices with these ids, or of the whole cluster. Where nodes differ, the slowest says."""
        near, far = cluster.link(False, devices), cluster.link(True, devices)
        shared = cluster.node_port_bytes_per_second(devices)
        return cls(cluster.node_of, near, far, cluster.port(devices), shared)

    @cached_property
    def nodes(self) -> np.ndarray:
        """The node of each device, ``[devices]``."""
        return np.asarray(self.node_of)

    def crosses(self, mesh: Mesh, axes: tuple[str, ...]) -> bool:
        """Whether a group of devices along these axes has devices of more than one node."""
        nodes = self.nodes[np.asarray(mesh.devices)][mesh.groups(axes)]
        return bool((nodes != nodes[:, :1]).any())

    def link(self, crosses: bool) -> Link:
        return self.far if crosses else self.near


@dataclass(frozen=True)
class Load:
    """Elements that each device sends and receives in a step, by the device's number, and its seconds."""

    sent: np.ndarray
    received: np.ndarray
    seconds: float


def priced(steps: Sequence[Step], item_bytes: int, network: Network) -> tuple[tuple[Priced, ...], int]:
    """The steps with their prices, and the bytes of the device that sends or receives most in all of them together."""
    sent = received = np.zeros(len(network.node_of), np.int64)
    found = []
    for step in steps:
        one = load(step, item_bytes, network)
        sent, received = sent + one.sent, received + one.received
        found.append(Priced(
            step, int(one.sent.max(initial=0)) * item_bytes, int(one.received.max(initial=0)) * item_bytes,
            one.seconds, step.after.largest * item_bytes,
        ))  # fmt: skip
    return tuple(found), int(max(sent.max(), received.max())) * item_bytes


def load(step: Step, item_bytes: int, network: Network) -> Load:
    """What each device sends and receives, ``[devices]``, and how long it takes."""
    if step.op == "direct":
        return _direct(step, item_bytes, network)
    count = len(network.node_of)
    sent, received = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if step.op in LOCAL:
        return Load(sent, received, 0.0)
    devices = np.asarray(step.after.mesh.devices)
    out, into = _in_group(step)
    sent[devices], received[devices] = out, into
    return Load(sent, received, _seconds(step, item_bytes, network, devices[into > 0]))


def _in_group(step: Step) -> tuple[np.ndarray, np.ndarray]:
    before, after, group = step.before.elements, step.after.elements, step.group_size
    if step.op == "all-gather":
        return before * (group - 1), after - before
    if step.op == "reduce-scatter":
        return before - after, after * (group - 1)
    if step.op == "all-reduce":
        pieces = np.empty(len(before), np.int64)
        groups = step.before.mesh.groups(step.axes)
        pieces[groups] = (before[groups] + np.arange(group)[::-1]) // group
        moved = before - pieces + pieces * (group - 1)
        return moved, moved
    kept = overlap(step.before.boxes, step.after.boxes)
    return before - kept, after - kept


def _seconds(step: Step, item_bytes: int, network: Network, receivers: np.ndarray) -> float:
    group = step.group_size
    if step.op == "all-permute":
        crosses = bool((network.nodes[_givers(step)] != network.nodes[np.asarray(step.after.mesh.devices)]).any())
        size = step.after.largest if len(receivers) else 0
    else:
        crosses = network.crosses(step.before.mesh, step.axes)
        if step.op == "all-gather":
            size = step.before.largest * group
        elif step.op == "reduce-scatter":
            size = step.after.largest * group
        elif step.op == "all-reduce":
            size = step.before.largest
        else:
            size = int(np.minimum(step.before.local_shape(), step.after.local_shape()).prod()) * group
    return op_seconds(step.op, size * item_bytes, group, network.link(crosses))


def op_seconds(op: Op, size_bytes: int, group: int, link: Link) -> float:
    """Of a collective, or of the one message of a permutation; ``size_bytes`` is what ``cost.collective`` says."""
    if op == "all-permute":
        return point_to_point_seconds(size_bytes, link)
    return SECONDS[cast(Collective, op.replace("-", "_"))](size_bytes, group, link)


def _givers(step: Step) -> np.ndarray:
    """Of each place, the device whose tile it takes in an all-permute."""
    before, after = (np.lexsort((*kind.boxes[..., 0].T, kind.parts)) for kind in (step.before, step.after))
    found = np.empty(len(before), np.int64)
    found[after] = np.asarray(step.before.mesh.devices)[before]
    return found


def overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Elements in both of two boxes ``[…, dims, 2]``."""
    return np.clip(
        np.minimum(one[..., 1], other[..., 1]) - np.maximum(one[..., 0], other[..., 0]), 0, None
    ).prod(axis=-1)  # fmt: skip


def held(before: ArrayType, devices: tuple[int, ...]) -> np.ndarray:
    """The place in the source of each device, -1 where it has none."""
    if before.mesh.devices == devices:
        return np.arange(len(devices))
    return np.asarray([before.mesh.place.get(device, -1) for device in devices])


def keys(kind: ArrayType) -> tuple[np.ndarray, int]:
    """The number of what each place holds, tile and part of a sum together, and how many there are."""
    parts = kind.mesh.size(kind.layout.partial)
    tiles = kind.mesh.size(kind.layout.cutting)
    return kind.tiles * parts + kind.parts, tiles * parts


def kept(before: ArrayType, after: ArrayType) -> np.ndarray:
    """Elements of what it wants that each place of the target has already."""
    places = held(before, after.mesh.devices)
    return np.where(places >= 0, overlap(before.boxes[places], after.boxes), 0)


def _direct(step: Step, item_bytes: int, network: Network) -> Load:
    before, after = step.before, step.after
    into, out = np.asarray(after.mesh.devices), np.asarray(before.mesh.devices)
    tile, tiles = keys(before)
    holders = np.bincount(tile, minlength=tiles)
    copies = len(after.mesh.devices) // keys(after)[1]
    places = held(before, after.mesh.devices)
    own = kept(before, after)
    of_place = np.where(places >= 0, tile[places], 0)
    # Every element of a tile is wanted by as many devices as the target has copies, less those that hold it.
    wanted = np.zeros(tiles, np.int64)
    wanted[tile] = copies * before.elements
    wanted -= np.bincount(of_place, own, minlength=tiles).astype(np.int64)
    has = own > 0
    readers = np.zeros(tiles, np.int64)
    readers[tile] = copies * _met(before, after)
    readers -= np.bincount(of_place, has, minlength=tiles).astype(np.int64)
    blocks = _met(after, before) - has

    lacks, gives, asked = after.elements - own, wanted[tile] / holders[tile], readers[tile] / holders[tile]
    if len(np.unique(network.nodes[np.concatenate((into, out))])) == 1:
        near_in, near_out, near_blocks, near_read = lacks, gives, blocks, asked
        far_out = far_read = np.zeros(len(out))
    else:
        near = _Near(step, network, tile, tiles, places)
        near_in, near_out, near_blocks, near_read = near.received, near.sent, near.blocks, near.readers
        if step.nodes is None:
            far_out, far_read = gives - near_out, asked - near_read
        else:
            far_out, far_read = (
                (wanted - near.wanted)[tile] / holders[tile],
                (readers - near.read)[tile] / holders[tile],
            )
    far_in, far_blocks = lacks - near_in, blocks - near_blocks
    count = len(network.node_of)
    sent, received = np.zeros(count), np.zeros(count)
    pieces = np.where(readers % holders == 0, 1, holders).max(initial=1)
    sent[out] = np.ceil(near_out + far_out - 1e-9)
    received[into] = lacks
    ports = [
        (into, near_in, near_blocks * pieces, network.near),
        (out, near_out, near_read * pieces, network.near),
        (into, far_in, far_blocks * pieces, network.port),
        (out, far_out, far_read * pieces, network.port),
    ]
    seconds = max(_port_seconds(elements * item_bytes, messages, link) for _, elements, messages, link in ports)
    if network.node_bytes_per_second is not None:
        for devices, elements in ((into, far_in), (out, far_out)):
            most = float(np.bincount(network.nodes[devices], elements).max()) * item_bytes
            if most:
                seconds = max(seconds, network.port.latency_seconds + most / network.node_bytes_per_second)
    return Load(sent.astype(np.int64), received.astype(np.int64), seconds)


def _port_seconds(size_bytes: np.ndarray, messages: np.ndarray, link: Link) -> float:
    taken = size_bytes / link.reached_bytes_per_second + latencies(messages) * link.latency_seconds
    return float(np.where(size_bytes > 1e-9, taken, 0.0).max(initial=0.0))


def latencies(messages: np.ndarray) -> np.ndarray:
    """As many as an all-to-all with that many others has: ⌈log2(n + 1)⌉, and 0 without a message."""
    return np.ceil(np.log2(np.ceil(messages - 1e-9) + 1) - 1e-9)


def _met(one: ArrayType, other: ArrayType) -> np.ndarray:
    """How many tiles of the other each place of the first has elements in common with."""
    found = np.ones(len(one.mesh.devices), np.int64)
    for dim, (size, axes) in enumerate(zip(other.shape, other.layout.dims, strict=True)):
        found *= pieces_met(size, [other.mesh.sizes[axis] for axis in axes], one.boxes[:, dim, 0], one.boxes[:, dim, 1])
    return found


class _Near:
    """What of a direct step goes between devices of one node.

    By place of the target: elements ``received``, ``blocks`` that they come in; by place of the source: elements
    ``sent``, messages to ``readers``; by tile: elements ``wanted`` and ``read`` inside nodes that hold it.
    """

    def __init__(self, step: Step, network: Network, tile: np.ndarray, tiles: int, places: np.ndarray):
        before, after = step.before, step.after
        source_nodes = network.nodes[np.asarray(before.mesh.devices)]
        target_nodes = network.nodes[np.asarray(after.mesh.devices)]
        # A tile's copies of one node are one: the first stands for them.
        _, first, which, copies = np.unique(
            source_nodes * tiles + tile, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(source_nodes[first], kind="stable")
        in_node = np.bincount(source_nodes, minlength=int(network.nodes.max(initial=0)) + 1)
        width = int(np.bincount(source_nodes[first]).max())
        table = np.full((len(in_node), width), -1)
        rows = source_nodes[first][order]
        starts = np.searchsorted(rows, rows, "left")
        table[rows, np.arange(len(rows)) - starts] = order
        met = table[target_nodes]
        place = first[met]
        same = (met >= 0) & (before.parts[place] == after.parts[:, None])
        common = np.where(same, overlap(before.boxes[place], after.boxes[:, None]), 0)
        mine = (places >= 0)[:, None] & (which[places][:, None] == met)
        others = np.where(mine, 0, common)
        holders = np.bincount(tile, minlength=tiles)
        share = np.ones(len(first)) if step.nodes is not None else copies / holders[tile[first]]
        self.received = (others * share[met]).sum(axis=1)
        self.blocks = ((others > 0) * share[met]).sum(axis=1)
        wanted = np.bincount(met[same], others[same], minlength=len(first)) * share
        read = np.bincount(met[same], others[same] > 0, minlength=len(first)) * share
        self.sent, self.readers = (wanted / copies)[which], (read / copies)[which]
        self.wanted = np.bincount(tile[first], wanted, minlength=tiles)
        self.read = np.bincount(tile[first], read, minlength=tiles)
