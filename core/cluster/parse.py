"""How a user writes a cluster: ``4x8xa100-80gb``, ``8xh200``, several of them joined by ``+``, ``cpu`` with a device
count, or a JSON file (``cluster.file``)."""

from __future__ import annotations

import re

from partita.cluster.cores import cores_of
from partita.cluster.file import LARGEST, load_cluster
from partita.cluster.model import Cluster, Kind
from partita.cluster.presets import load_preset, preset_names
from partita.errors import ClusterError, nearest

FORM = (
    'a cluster is written "nodes x devices x preset" such as 4x8xa100-80gb, "devices x preset" such as 8xh200, '
    "several of these joined by + where nodes differ, or is a .json file"
)


def parse_cluster(text: str, devices: int | None = None) -> Cluster:
    """The cluster that the text describes; ``devices`` counts the processes of a bare preset name such as ``cpu``.

    Raises ClusterError for unknown presets (with the nearest), counts that are not positive and what can't be read.
    """
    if text.endswith(".json"):
        if devices is not None:
            raise ClusterError(f"the file {text} says how many devices there are; leave out --devices {devices}")
        return load_cluster(text)
    parts = text.split("+")
    names: list[str] = []
    nodes: list[int] = []
    kinds: list[Kind] = []
    for part in parts:
        shape, preset = _split(text, part)
        shape = _counted(text, part, shape, devices, alone=len(parts) == 1)
        counts = (shape[-1],) * (shape[0] if len(shape) == 2 else 1)
        found = load_preset(preset)
        kind = Kind(found.device(), found.intra_node.link(), found.inter_node.link())
        names.append("x".join((*(str(count) for count in shape), preset)))
        nodes += counts
        kinds += [kind] * len(counts)
    if sum(nodes) > LARGEST:
        raise ClusterError(f'"{text}" has {sum(nodes):,} devices; {LARGEST:,} at most')
    name, cores = "+".join(names), cores_of(f'"{text}"', kinds)
    if cores is not None:
        # Another machine would plan otherwise: what was assumed is part of the name.
        name += f" on {cores} core{'s' if cores > 1 else ''}"
    return Cluster(name, tuple(nodes), tuple(kinds), cores)


def _split(text: str, part: str) -> tuple[tuple[int, ...], str]:
    """Counts and preset name; the longest known preset at the end wins, so that names may contain an x."""
    known = [name for name in preset_names() if part == name or part.endswith(f"x{name}")]
    name = max(known, key=len) if known else re.split(r"(?:^|(?<=\d))x", part)[-1]
    counts = part[: len(part) - len(name)].rstrip("x")
    if not name.strip() or re.fullmatch(r"[-+\d.x ]*", name):
        raise ClusterError(f'"{text}": {FORM}. Presets: {", ".join(preset_names())}')
    if not known:
        raise ClusterError(f'"{text}": there is no preset "{name}".{nearest(name, preset_names())}')
    words = counts.split("x") if counts else []
    if len(words) > 2 or not all(re.fullmatch(r"[-+]?\d{1,9}", word) for word in words):
        raise ClusterError(f'"{text}": "{counts}" is no count; {FORM}')
    return tuple(int(word) for word in words), name


def _counted(text: str, part: str, shape: tuple[int, ...], devices: int | None, alone: bool) -> tuple[int, ...]:
    """The counts of a part, which may come from ``devices`` where it is the whole and has none."""
    if devices is not None and (shape or not alone):
        raise ClusterError(
            f'"{text}" says how many devices there are; leave out --devices {devices}'
            if shape
            else f'"{text}": each part says how many devices it has, such as {devices}x{part}; leave out --devices'
        )
    if not shape and devices is None:
        raise ClusterError(
            f'"{text}" says not how many devices there are; 4x{text} does, or --cluster {text} --devices 4'
            if alone
            else f'"{text}" says not how many devices "{part}" has; 8x{part} does, or 2x8x{part} for two nodes'
        )
    shape = shape or (devices or 0,)
    for count in shape:
        if not 1 <= count <= LARGEST:
            raise ClusterError(f'"{text}": {count} is no count of nodes or devices; 1 to {LARGEST:,} are')
    return shape
