"""A cluster whose device has been measured: its blocks, its kernels and its links come from a profile."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from partita.cluster.model import Cluster, Kind, Link
from partita.cost.precision import compute_dtype
from partita.errors import InputError, listed
from partita.graph.model import Graph
from partita.plan import Profile
from partita.profile import galvatron
from partita.profile.read import collective_link, measured, parse_profile, require_rows
from partita.profile.rows import ProfileFile

# Words by which devices are known: a profile of one stands for no other.
MODELS = re.compile(r"cpu|[abhlv]\d{2,3}|gb?\d{3}|mi\d{3}", re.IGNORECASE)


def profiled(cluster: Cluster, path: str | Path, precision: str, graph: Graph | None = None) -> Cluster:
    """The cluster with what the file measured of its devices, or Galvatron's files of ``graph`` in the folder ``path``.

    InputError for rows that can't be, for another device's profile and for one in another precision.
    """
    if Path(path).is_dir():
        assert graph is not None, "a folder's files name no blocks"
        found = _of_galvatron(cluster, Path(path), precision, graph)
    else:
        found = _of_file(cluster, path, precision)
    return replace(found, profile=Profile(str(path), content(Path(path))))


def content(path: Path) -> str:
    """SHA-256 of a profile's file, or of the names and the texts of a folder's JSON files."""
    if not path.is_dir():
        return sha256(path.read_bytes()).hexdigest()
    texts = [(file.name, content(file)) for file in sorted(path.glob("*.json"))]
    return sha256(repr(texts).encode()).hexdigest()


def _of_file(cluster: Cluster, path: str | Path, precision: str) -> Cluster:
    file = parse_profile(path)
    if not any(_is_of(kind, file) for kind in cluster.different_kinds):
        there, names = MODELS.search(file.device), listed(device.name for device in cluster.different_devices())
        assert there, "a device of no known name stands for any"
        raise InputError(
            f'{path}: the profile is of "{file.device}", the cluster\'s device is {names}; '
            f"a cluster of {there[0].lower()} devices works"
        )
    if file.precision != precision:
        raise InputError(
            f'{path}: the profile was measured in {file.precision}, the plan is for precision "{precision}"; '
            f"--precision {file.precision} works, or a profile in {precision}"
        )

    def with_profile(kind: Kind) -> Kind:
        if not _is_of(kind, file):
            return kind
        # A host's figures are those of the machine that its preset was measured on: another may well be faster.
        peak = None if kind.device.on_host else kind.device.peak_flops.get(compute_dtype(precision))
        require_rows(file, path, peak)
        device = replace(kind.device, measured=measured(file, str(path)))
        inside, between = (collective_link(file, crosses, cluster.slowdown) for crosses in (False, True))
        return replace(kind, device=device, intra_node=inside or kind.intra_node, inter_node=between or kind.inter_node)

    return cluster.with_kinds(with_profile)


def _is_of(kind: Kind, file: ProfileFile) -> bool:
    """Whether the file may be a profile of the node's devices: their names speak of no two models."""
    here, there = MODELS.search(kind.device.name), MODELS.search(file.device)
    return not here or not there or here[0].lower() == there[0].lower()


def _of_galvatron(cluster: Cluster, folder: Path, precision: str, graph: Graph) -> Cluster:
    names = [path.name for path in folder.glob("computation_profiling_*.json")]
    if names and not any(f"_{precision}_" in name for name in names):
        raise InputError(f'{folder}: no file of precision "{precision}": {", ".join(sorted(names))}')
    if len(cluster.different_devices()) > 1:
        raise InputError(
            f"{folder}: Galvatron's files are of one kind of device, the cluster has {cluster.device_names}; a cluster "
            "of the measured devices alone works"
        )
    found = galvatron.measured(folder, graph, precision)
    largest, count = max(cluster.nodes), len(cluster.nodes)
    speed = galvatron.link_bytes_per_second(folder, largest, 1)
    wide = galvatron.link_bytes_per_second(folder, largest, count) if count > 1 else None

    def with_profile(kind: Kind) -> Kind:
        return replace(
            kind, device=replace(kind.device, measured=found),
            intra_node=replace(kind.intra_node, bytes_per_second=speed, efficiency=1.0) if speed else kind.intra_node,
            inter_node=Link(wide, kind.inter_node.latency_seconds) if wide else kind.inter_node,
        )  # fmt: skip

    return cluster.with_kinds(with_profile)
