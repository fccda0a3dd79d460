"""A cluster whose device has been measured: its blocks, its kernels and its links come from a profile."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from partita.cluster.model import Cluster, Link
from partita.cost.precision import compute_dtype
from partita.errors import InputError
from partita.profile.read import collective_link, measured, read_profile

# Words by which devices are known: a profile of one stands for no other.
MODELS = re.compile(r"cpu|[abhlv]\d{2,3}|gb?\d{3}|mi\d{3}", re.IGNORECASE)


def profiled(cluster: Cluster, path: str | Path, precision: str) -> Cluster:
    """The cluster with what the file measured. InputError for rows that can't be, for another device's profile and for
    one in another precision."""
    file = read_profile(path, cluster.device.peak_flops.get(compute_dtype(precision)))
    if file.precision != precision:
        raise InputError(
            f'{path}: the profile was measured in {file.precision}, the plan is for precision "{precision}"; '
            f"--precision {file.precision} works, or a profile in {precision}"
        )
    here, there = MODELS.search(cluster.device.name), MODELS.search(file.device)
    if here and there and here[0].lower() != there[0].lower():
        raise InputError(
            f'{path}: the profile is of "{file.device}", the cluster\'s device is {cluster.device.name}; '
            f"a cluster of {there[0].lower()} devices works"
        )
    device = replace(cluster.device, measured=measured(file, str(path)))
    inside, between = (collective_link(file, crosses, cluster.slowdown) for crosses in (False, True))
    return replace(
        cluster, device=device,
        intra_node=cluster.intra_node if inside is None else Link(inside[1], inside[0]),
        inter_node=cluster.inter_node if between is None else Link(between[1], between[0]),
    )  # fmt: skip
