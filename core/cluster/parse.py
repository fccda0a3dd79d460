"""How a user writes a cluster: ``4x8xa100-80gb``, ``8xh200``, ``cpu`` with a device count, or a JSON file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from partita.cluster.model import Cluster
from partita.cluster.presets import LinkFile, Positive, Strict, load_preset, preset_names
from partita.errors import ClusterError, nearest
from partita.files import parse_json

LARGEST = 1_000_000
FORM = (
    'a cluster is written "nodes x devices x preset" such as 4x8xa100-80gb, "devices x preset" such as 8xh200, '
    "or is a .json file"
)


class ClusterFile(Strict):
    """A cluster file: the device counts of its nodes, a preset, and what differs from the preset.

    ``cores`` are those that processes share; without it, those of the machine that plans. ``node_bytes_per_second``
    is what a node's devices together send to other nodes, where they share ports.
    """

    nodes: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    preset: str
    name: str | None = None
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    cores: Annotated[int, Field(gt=0)] | None = None
    intra_node: LinkFile | None = None
    inter_node: LinkFile | None = None
    node_bytes_per_second: Positive | None = None


def parse_cluster(text: str, devices: int | None = None) -> Cluster:
    """The cluster that the text describes; ``devices`` counts the processes of a bare preset name such as ``cpu``.

    Raises ClusterError for unknown presets (with the nearest), counts that are not positive and what can't be read.
    """
    if text.endswith(".json"):
        if devices is not None:
            raise ClusterError(f"the file {text} says how many devices there are; leave out --devices {devices}")
        return load_cluster(text)
    shape, preset_name = _split(text)
    if shape and devices is not None:
        raise ClusterError(f'"{text}" says how many devices there are; leave out --devices {devices}')
    if not shape:
        if devices is None:
            raise ClusterError(
                f'"{text}" says not how many devices there are; 4x{text} does, or --cluster {text} --devices 4'
            )
        shape = (devices,)
    for count in shape:
        if not 1 <= count <= LARGEST:
            raise ClusterError(f'"{text}": {count} is no count of nodes or devices; 1 to {LARGEST:,} are')
    nodes = (shape[-1],) * (shape[0] if len(shape) == 2 else 1)
    if sum(nodes) > LARGEST:
        raise ClusterError(f'"{text}" has {sum(nodes):,} devices; {LARGEST:,} at most')
    preset = load_preset(preset_name)
    name = "x".join((*(str(count) for count in shape), preset_name))
    device, cores = preset.device(), None
    if device.on_host:
        cores = usable_cores()
        # Another machine would plan otherwise: what was assumed is part of the name.
        name += f" on {cores} core{'s' if cores > 1 else ''}"
    return Cluster(name, nodes, device, preset.intra_node.link(), preset.inter_node.link(), cores)


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has, under taskset or in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _split(text: str) -> tuple[tuple[int, ...], str]:
    """Counts and preset name; the longest known preset at the end wins, so that names may contain an x."""
    known = [name for name in preset_names() if text == name or text.endswith(f"x{name}")]
    name = max(known, key=len) if known else re.split(r"(?:^|(?<=\d))x", text)[-1]
    counts = text[: len(text) - len(name)].rstrip("x")
    if not name.strip() or re.fullmatch(r"[-+\d.x ]*", name):
        raise ClusterError(f'"{text}": {FORM}. Presets: {", ".join(preset_names())}')
    if not known:
        raise ClusterError(f'"{text}": there is no preset "{name}".{nearest(name, preset_names())}')
    words = counts.split("x") if counts else []
    if len(words) > 2 or not all(re.fullmatch(r"[-+]?\d{1,9}", word) for word in words):
        raise ClusterError(f'"{text}": "{counts}" is no count; {FORM}')
    return tuple(int(word) for word in words), name


def load_cluster(path: str | Path) -> Cluster:
    """The cluster in a JSON file; InputError or ClusterError name the file and the field."""
    file = parse_json(path, TypeAdapter(ClusterFile))
    try:
        preset = load_preset(file.preset)
    except ClusterError as error:
        raise ClusterError(f"{path}: preset: {error}") from None
    if sum(file.nodes) > LARGEST:
        raise ClusterError(f"{path}: nodes: {sum(file.nodes):,} devices; {LARGEST:,} at most")
    if file.memory_bytes is not None:
        figure = preset.memory_bytes.model_copy(update={"value": file.memory_bytes})
        preset = preset.model_copy(update={"memory_bytes": figure})
    device, cores = preset.device(), file.cores
    if device.on_host:
        cores = cores or usable_cores()
    elif cores is not None:
        raise ClusterError(f"{path}: cores: {cores}: devices of preset \"{file.preset}\" don't share the host's cores")
    intra, inter = file.intra_node or preset.intra_node, file.inter_node or preset.inter_node
    return Cluster(
        file.name or Path(path).stem, tuple(file.nodes), device, intra.link(), inter.link(), cores,
        file.node_bytes_per_second,
    )  # fmt: skip
