"""Which devices form which group: ranks in the order (stage, data, tensor), tensor innermost.

A tensor-parallel group is kept inside a node wherever nodes have room for all groups; devices that are left over are
idle and named by whoever prints the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.cluster.model import Cluster


@dataclass(frozen=True)
class Placement:
    """Where pp stages of dp × tp devices lie, and which of their groups cross nodes.

    ``tp_beside``, ``dp_beside``: the members that a group has in each of its nodes, the fewest of all of them.
    Devices aren't stored: a search holds hundreds of placements and prints one.
    """

    cluster: Cluster
    dp: int
    tp: int
    pp: int
    tp_crosses: bool
    dp_crosses: bool
    tp_beside: int
    dp_beside: int
    boundary_crosses: tuple[bool, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """``devices[(stage * dp + d) * tp + t]`` is the device id at that place."""
        return tuple(_devices(self.cluster, self.dp, self.tp, self.pp).tolist())

    @property
    def idle(self) -> tuple[int, ...]:
        """Devices that no stage uses."""
        return tuple(sorted(set(range(self.cluster.devices)) - set(self.devices)))


def place(cluster: Cluster, dp: int, tp: int, pp: int) -> Placement:
    """The placement of pp stages of dp × tp devices each. Needs pp·dp·tp ≤ the cluster's devices."""
    assert dp * tp * pp <= cluster.devices
    return placed(cluster, _devices(cluster, dp, tp, pp), dp, tp, pp)


def placed(cluster: Cluster, devices: Sequence[int] | np.ndarray, dp: int, tp: int, pp: int) -> Placement:
    """The placement of these devices, in the order (stage, data, tensor)."""
    nodes = np.asarray(cluster.node_of)[np.asarray(devices)].reshape(pp, dp, tp)
    return Placement(
        cluster, dp, tp, pp,
        tp_crosses=bool((nodes != nodes[:, :, :1]).any()),
        dp_crosses=bool((nodes != nodes[:, :1, :]).any()),
        tp_beside=beside(nodes.reshape(-1, tp)),
        dp_beside=beside(nodes.transpose(0, 2, 1).reshape(-1, dp)),
        boundary_crosses=tuple((nodes[1:] != nodes[:-1]).any(axis=(1, 2)).tolist()),
    )  # fmt: skip


def beside(nodes: np.ndarray) -> int:
    """[groups, members], the node of each member: the members that a group has in one of its nodes, at least."""
    groups = np.arange(len(nodes))[:, None] * (int(nodes.max()) + 1)
    counts = np.bincount((groups + nodes).reshape(-1))
    return int(counts[counts > 0].min())


def _devices(cluster: Cluster, dp: int, tp: int, pp: int) -> np.ndarray:
    inside = _inside_nodes(cluster, tp, dp * pp)
    return np.arange(dp * tp * pp) if inside is None else inside


def _inside_nodes(cluster: Cluster, tp: int, groups: int) -> np.ndarray | None:
    """The first devices that form that many groups of tp without crossing a node, or None if nodes have no room."""
    found = []
    first = 0
    for count in cluster.nodes:
        found.append(np.arange(first, first + count // tp * tp))
        first += count
    devices = np.concatenate(found)[: groups * tp]
    return devices if len(devices) == groups * tp else None
