"""The cheapest steps from one type of an array to another, within the memory that is allowed: the question and its
answer. The search is in ``paths``."""

from __future__ import annotations

import time
from functools import lru_cache
from math import prod

from partita.cluster.model import Cluster
from partita.cluster.parse import parse_cluster
from partita.errors import Infeasible, InputError
from partita.redistribution.answer import Redistribution
from partita.redistribution.array_type import ArrayType
from partita.redistribution.bound import lower_bound
from partita.redistribution.paths import Objective, Search
from partita.redistribution.price import Network, priced
from partita.redistribution.split import divided_ends, joined, plain
from partita.redistribution.steps import LOCAL, Op

ALL: frozenset[Op] = frozenset(
    (*LOCAL, "all-gather", "all-to-all", "all-permute", "all-reduce", "reduce-scatter", "direct")
)


def redistribution(
    source: ArrayType,
    target: ArrayType,
    item_bytes: int,
    cluster: Cluster | None = None,
    *,
    objective: Objective = "time",
    memory_bytes: int | None = None,
    seconds_limit: float | None = None,
    allowed: frozenset[Op] | None = None,
    whole_axes: bool = False,
) -> Redistribution:
    """The cheapest steps of those ``allowed`` (None: of all), by seconds, then bytes; or by bytes, then seconds.

    No device ever holds more than ``memory_bytes`` of the array; None: than the source or the target, whichever is
    larger; where the ops that are allowed can't keep to that, what they need. ``cluster`` None is one node of H100s.
    After ``seconds_limit`` the best found so far is the answer. ``whole_axes``: no axis is divided, for those who have
    groups along the mesh's own axes alone. Answers are kept. The source's sums may be completed, and those of the
    target made of whole values. InputError where the shapes differ or a device is none of the cluster; Infeasible where
    the memory is too small, or no steps of those allowed lead there.
    """
    if source.shape != target.shape:
        raise InputError(f"an array of shape {list(source.shape)} can't become one of shape {list(target.shape)}")
    devices = max(*source.mesh.devices, *target.mesh.devices) + 1
    if cluster is None:
        cluster = parse_cluster("1xh100-80gb").resized(devices)
    if devices > cluster.devices:
        raise InputError(
            f'device {devices - 1} is named; cluster "{cluster.name}" has {cluster.devices} devices, from 0 on'
        )
    if memory_bytes is not None and memory_bytes < (ends := max(source.largest, target.largest) * item_bytes):
        raise Infeasible(f"{memory_bytes:,} bytes of memory are too few: source or target alone are {ends:,} a device")
    network = Network.of(cluster, (*source.mesh.devices, *target.mesh.devices))
    return _searched(source, target, item_bytes, network, objective, memory_bytes, seconds_limit, allowed, whole_axes)


@lru_cache(maxsize=512)
def _searched(
    source: ArrayType, target: ArrayType, item_bytes: int, network: Network, objective: Objective,
    memory_bytes: int | None, seconds_limit: float | None, allowed: frozenset[Op] | None, whole_axes: bool,
) -> Redistribution:  # fmt: skip
    until = None if seconds_limit is None else time.monotonic() + seconds_limit
    bound = lower_bound(source, target)
    if whole_axes:
        meshes = [(plain(source), plain(target))]
    else:
        meshes = [divided_ends(source, target, network, into_primes) for into_primes in (False, True)]
    ends = max(source.largest, target.largest)
    memory = ends if memory_bytes is None else memory_bytes // item_bytes
    while True:
        searches: list[Search] = []
        for here, there in dict.fromkeys(meshes):
            best = searches[-1].best if searches else None
            searches.append(
                Search(here, there, item_bytes, network, objective, memory, allowed or ALL, bound, until, best)
            )
            if searches[-1].proven:
                break
        best = searches[-1].best
        if best is not None:
            break
        if memory_bytes is not None or memory >= prod(source.shape):
            raise Infeasible(
                f"from {source} to {target}: no steps of {', '.join(sorted(allowed or ALL))} lead there"
                + (f" within {memory_bytes:,} bytes a device" if memory_bytes is not None else "")
            )
        # What is allowed can't keep to the larger end: it gets more, up to the whole array.
        memory *= 2
    optimal = searches[-1].proven or all(search.complete for search in searches)
    considered = sum(search.considered for search in searches)
    prices, bytes_per_device = priced(joined(best.steps), item_bytes, network)
    peak = max([ends * item_bytes, *(price.local_bytes for price in prices)])
    return Redistribution(
        source, target, item_bytes, prices, bytes_per_device, bound * item_bytes, peak,
        memory_bytes or (ends * item_bytes if memory == ends else peak),
        sum(price.seconds for price in prices), optimal, considered,
    )  # fmt: skip
