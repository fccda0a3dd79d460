"""Devices: whether replicas come out even, which ranks form a group and whether it crosses nodes, who is idle."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from partita.cluster import Cluster
from partita.errors import divisors
from partita.plugins.check.finding import Finding, problem, warning
from partita.plugins.check.settings import Settings

# So many groups or devices are named in a message.
SHOWN = 8


def tp_groups(devices: int, tp: int) -> list[tuple[int, ...]]:
    """Ranks of each tensor-parallel group, as DeepSpeed and Megatron form them: runs of neighbouring ranks."""
    return [tuple(range(first, first + tp)) for first in range(0, devices - tp + 1, tp)]


def device_findings(settings: Settings, cluster: Cluster | None) -> Iterator[Finding]:
    """Counts that don't come out even, more devices than there are, idle ones, groups over the slow link."""
    devices, each = settings.devices, settings.model_parallel
    if devices is None:
        return
    if devices % each:
        yield _uneven(settings, devices, each, cluster)
    if cluster is None:
        return
    if devices > cluster.devices:
        yield problem(settings.main, f"{devices} processes, and {cluster.name} has {cluster.devices} devices")
        return
    if devices < cluster.devices:
        idle = range(devices, cluster.devices)
        message = f"{_some(idle)} idle: {devices} processes for the {cluster.devices} devices of {cluster.name}"
        yield warning(settings.main, message, f"{cluster.devices} processes")
    crossing = _crossing(settings, cluster)
    if crossing and devices % each == 0:
        near, far = (cluster.link(crosses, crossing[0]) for crosses in (False, True))
        slow = near.reached_bytes_per_second / far.reached_bytes_per_second
        inside = [d for d in divisors(settings.tp) if all(count % d == 0 for count in cluster.nodes)]
        yield warning(
            settings.place("tp"),
            f"tp {settings.tp}: {len(crossing)} of {devices // settings.tp} groups cross nodes, the first with ranks "
            f"{', '.join(map(str, crossing[0][:SHOWN]))}; the link between nodes is {slow:.3g} times slower",
            f"tp {inside[-1]}",
        )


def _crossing(settings: Settings, cluster: Cluster) -> list[tuple[int, ...]]:
    node = cluster.node_of
    groups = tp_groups(min(settings.devices or 0, cluster.devices), settings.tp)
    return [group for group in groups if len({node[rank] for rank in group}) > 1]


def _uneven(settings: Settings, devices: int, each: int, cluster: Cluster | None) -> Finding:
    sizes = (("tp", settings.tp), ("pp", settings.pp), ("sp", settings.sp))
    factors = [f"{name} {size}" for name, size in sizes if size > 1]
    parts = " · ".join(factors) + (f" = {each}" if len(factors) > 1 else "")
    most = inf if cluster is None else cluster.devices
    near = (devices // each * each, (devices // each + 1) * each)
    works = [f"{count} device{'' if count == 1 else 's'}" for count in near if 0 < count <= most]
    rest = settings.pp * settings.sp
    if devices % rest == 0:
        works += [f"tp {size}" for size in divisors(devices // rest)]
    where = ""
    if cluster is not None and devices == cluster.devices and rest == 1:
        where = _within_nodes(cluster, settings.tp)
    return problem(settings.place("tp"), f"{devices} devices are not divisible by {parts}{where}", *works)


def _within_nodes(cluster: Cluster, tp: int) -> str:
    """Which devices could form groups of tp without crossing nodes, and who would be idle."""
    groups, idle, first = [], [], 0
    for count in cluster.nodes:
        ranks = range(first, first + count)
        groups += [tuple(ranks[i : i + tp]) for i in range(0, count - tp + 1, tp)]
        idle += list(ranks[count // tp * tp :])
        first += count
    if not groups or not idle:
        return ""
    return f"; within a node {_grouped(groups)} can be groups of {tp}, and {_some(idle)} idle"


def _grouped(groups: list[tuple[int, ...]]) -> str:
    shown = ", ".join(f"({', '.join(map(str, group))})" for group in groups[:SHOWN])
    return shown + (" …" if len(groups) > SHOWN else "")


def _some(devices: range | list[int]) -> str:
    """``device 3 is`` or ``devices 0, 1 are``; many are named by their first and last."""
    if len(devices) == 1:
        return f"device {devices[0]} is"
    names = ", ".join(map(str, devices)) if len(devices) <= SHOWN else f"{devices[0]} … {devices[-1]} ({len(devices)})"
    return f"devices {names} are"


def ranks(settings: Settings, cluster: Cluster) -> dict[str, Any]:
    """For nodes that differ, what launchers get wrong: each rank's number in its own node, its device, the groups."""
    unlike = len(cluster.different_devices()) > 1
    if len(set(cluster.nodes)) == 1 and not unlike:
        return {}
    found: dict[str, Any] = {"local_ranks": list(cluster.local_ranks)}
    if unlike:
        found["rank_devices"] = [cluster.device_at(rank).name for rank in range(cluster.devices)]
    if settings.tp > 1 and settings.devices:
        found["tp_groups"] = [list(group) for group in tp_groups(min(settings.devices, cluster.devices), settings.tp)]
    return found
