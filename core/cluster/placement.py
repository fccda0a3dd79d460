"""Which devices form which group: ranks in the order (stage, data, tensor), tensor innermost.

A tensor-parallel group is kept inside a node wherever nodes have room for all groups; devices that are left over are
idle and named by whoever prints the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.cluster.model import Cluster


@dataclass(frozen=True)
class Placement:
    """``devices[(stage * dp + d) * tp + t]`` is the device id at that place; the links are each group's slowest tier."""

    devices: tuple[int, ...]
    idle: tuple[int, ...]
    tp_crosses: bool
    dp_crosses: bool
    boundary_crosses: tuple[bool, ...]


def place(cluster: Cluster, dp: int, tp: int, pp: int) -> Placement:
    """Devices for pp stages of dp × tp each. Needs pp·dp·tp ≤ the cluster's devices."""
    used = dp * tp * pp
    assert used <= cluster.devices
    devices = _inside_nodes(cluster, tp, dp * pp)
    if devices is None:
        devices = np.arange(used)
    nodes = np.asarray(cluster.node_of)[devices].reshape(pp, dp, tp)
    return Placement(
        devices=tuple(devices.tolist()),
        idle=tuple(sorted(set(range(cluster.devices)) - set(devices.tolist()))) if used < cluster.devices else (),
        tp_crosses=bool((nodes != nodes[:, :, :1]).any()),
        dp_crosses=bool((nodes != nodes[:, :1, :]).any()),
        boundary_crosses=tuple((nodes[1:] != nodes[:-1]).any(axis=(1, 2)).tolist()),
    )


def _inside_nodes(cluster: Cluster, tp: int, groups: int) -> np.ndarray | None:
    """The first devices that form that many groups of tp without crossing a node, or None if nodes have no room."""
    found = []
    first = 0
    for count in cluster.nodes:
        found.append(np.arange(first, first + count // tp * tp))
        first += count
    devices = np.concatenate(found)[: groups * tp]
    return devices if len(devices) == groups * tp else None
