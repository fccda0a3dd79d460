"""Seconds of collectives: latency plus bytes over the bandwidth of the slowest tier that the group spans.

Bytes are those of a ring: an all-reduce of B bytes over n devices sends 2·(n − 1)/n·B from each, a reduce-scatter or
an all-gather half of that. Latency grows with ⌈log2 n⌉, as in a tree: nobody runs a ring of 1,024 for a small message.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2
from typing import Literal

from partita.cluster.model import Link

Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]


def all_reduce_seconds(size_bytes: float, group: int, link: Link) -> float:
    """An all-reduce of a tensor of that many bytes, held whole by each device of the group."""
    return 2 * reduce_scatter_seconds(size_bytes, group, link)


def reduce_scatter_seconds(size_bytes: float, group: int, link: Link) -> float:
    """A reduce-scatter; ``size_bytes`` is the whole tensor's size."""
    if group == 1 or size_bytes == 0:
        return 0.0
    sent = (group - 1) / group * size_bytes
    return ceil(log2(group)) * link.latency_seconds + sent / link.reached_bytes_per_second


def all_gather_seconds(size_bytes: float, group: int, link: Link) -> float:
    """An all-gather; ``size_bytes`` is the whole tensor's size."""
    return reduce_scatter_seconds(size_bytes, group, link)


def all_to_all_seconds(size_bytes: float, group: int, link: Link) -> float:
    """An all-to-all; ``size_bytes`` is what each device holds, of which it keeps one part in ``group``."""
    return reduce_scatter_seconds(size_bytes, group, link)


def point_to_point_seconds(size_bytes: float, link: Link) -> float:
    """One message from one device to another."""
    return link.latency_seconds + size_bytes / link.reached_bytes_per_second if size_bytes else 0.0


# Seconds of a collective of so many bytes in a group over a link; of what the bytes are, each function says.
SECONDS: dict[Collective, Callable[[float, int, Link], float]] = {
    "all_reduce": all_reduce_seconds, "reduce_scatter": reduce_scatter_seconds, "all_gather": all_gather_seconds,
    "all_to_all": all_to_all_seconds,
}  # fmt: skip
