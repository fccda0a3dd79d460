"""A cluster whose device has been measured: its blocks, its kernels and its links come from a profile."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from partita.cluster.model import Cluster, Link
from partita.cost.precision import compute_dtype
from partita.errors import InputError
from partita.graph.model import Graph
from partita.profile import galvatron
from partita.profile.read import collective_link, measured, parse_profile, require_rows

# Words by which devices are known: a profile of one stands for no other.
MODELS = re.compile(r"cpu|[abhlv]\d{2,3}|gb?\d{3}|mi\d{3}", re.IGNORECASE)


def profiled(cluster: Cluster, path: str | Path, precision: str, graph: Graph | None = None) -> Cluster:
    """The cluster with what the file measured, or with Galvatron's files of the model ``graph`` in the folder ``path``.

    InputError for rows that can't be, for another device's profile and for one in another precision.
    """
    if Path(path).is_dir():
        assert graph is not None, "a folder's files name no blocks"
        return _of_galvatron(cluster, Path(path), precision, graph)
    file = parse_profile(path)
    here, there = MODELS.search(cluster.device.name), MODELS.search(file.device)
    if here and there and here[0].lower() != there[0].lower():
        raise InputError(
            f'{path}: the profile is of "{file.device}", the cluster\'s device is {cluster.device.name}; '
            f"a cluster of {there[0].lower()} devices works"
        )
    if file.precision != precision:
        raise InputError(
            f'{path}: the profile was measured in {file.precision}, the plan is for precision "{precision}"; '
            f"--precision {file.precision} works, or a profile in {precision}"
        )
    # A host's figures are those of the machine that its preset was measured on: another may well be faster.
    peak = None if cluster.device.on_host else cluster.device.peak_flops.get(compute_dtype(precision))
    require_rows(file, path, peak)
    device = replace(cluster.device, measured=measured(file, str(path)))
    inside, between = (collective_link(file, crosses, cluster.slowdown) for crosses in (False, True))
    return replace(
        cluster, device=device, intra_node=inside or cluster.intra_node, inter_node=between or cluster.inter_node
    )


def _of_galvatron(cluster: Cluster, folder: Path, precision: str, graph: Graph) -> Cluster:
    names = [path.name for path in folder.glob("computation_profiling_*.json")]
    if names and not any(f"_{precision}_" in name for name in names):
        raise InputError(f'{folder}: no file of precision "{precision}": {", ".join(sorted(names))}')
    device = replace(cluster.device, measured=galvatron.measured(folder, graph, precision))
    largest, count = max(cluster.nodes), len(cluster.nodes)
    speed = galvatron.link_bytes_per_second(folder, largest, 1)
    wide = galvatron.link_bytes_per_second(folder, largest, count) if count > 1 else None
    return replace(
        cluster, device=device,
        intra_node=replace(cluster.intra_node, bytes_per_second=speed, efficiency=1.0) if speed else cluster.intra_node,
        inter_node=Link(wide, cluster.inter_node.latency_seconds) if wide else cluster.inter_node,
    )  # fmt: skip
