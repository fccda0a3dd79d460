"""The cores that processes of this machine share, where devices are processes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from partita.cluster.model import Kind
from partita.errors import ClusterError


def cores_of(what: str, kinds: Iterable[Kind]) -> int | None:
    """The cores that devices share where they are processes; ClusterError where some are and others aren't."""
    hosted = {kind.device.on_host: kind.device.name for kind in kinds}
    if len(hosted) == 2:
        raise ClusterError(
            f'{what}: devices of preset "{hosted[True]}" are processes on this machine, those of "{hosted[False]}" are '
            "not; a cluster is made of one or the other"
        )
    return usable_cores() if True in hosted else None


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has, under taskset or in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
