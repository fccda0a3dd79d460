"""A cluster in a JSON file: its nodes, of a preset each, and what differs from the presets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, TypeAdapter

from partita.cluster.cores import cores_of
from partita.cluster.model import Cluster, Kind
from partita.cluster.presets import Bytes, LinkFile, Positive, Preset, Strict, load_preset
from partita.errors import ClusterError
from partita.files import parse_json

LARGEST = 1_000_000
Count = Annotated[int, Field(gt=0)]


class Figures(Strict):
    """What differs from the preset. ``node_bytes_per_second`` is what a node's devices together send to other nodes,
    where they share ports."""

    preset: str | None = None
    memory_bytes: Bytes | None = None
    intra_node: LinkFile | None = None
    inter_node: LinkFile | None = None
    node_bytes_per_second: Positive | None = None


class NodeFile(Figures):
    """Nodes, ``count`` of them, with so many devices each. What isn't said here, the file says for all nodes."""

    devices: Count
    count: Count = 1


class ClusterFile(Figures):
    """A cluster file: its nodes in order, each a number of devices or an object.

    ``cores`` are those that processes share; without it, those of the machine that plans.
    """

    nodes: Annotated[
        list[
            Annotated[
                Annotated[Count, Tag("devices")] | Annotated[NodeFile, Tag("node")],
                Discriminator(lambda entry: "node" if isinstance(entry, dict | NodeFile) else "devices"),
            ]
        ],
        Field(min_length=1),
    ]
    name: str | None = None
    cores: Count | None = None


def load_cluster(path: str | Path) -> Cluster:
    """The cluster in a JSON file; InputError or ClusterError name the file and the field."""
    file = parse_json(path, TypeAdapter(ClusterFile))
    nodes: list[int] = []
    kinds: list[Kind] = []
    for place, entry in enumerate(file.nodes):
        node = NodeFile(devices=entry) if isinstance(entry, int) else entry
        if sum(nodes) + node.devices * node.count > LARGEST:
            total = sum(each if isinstance(each, int) else each.devices * each.count for each in file.nodes)
            raise ClusterError(f"{path}: nodes: {total:,} devices; {LARGEST:,} at most")
        nodes += [node.devices] * node.count
        kinds += [_kind(path, f"nodes.{place}.", node, file)] * node.count
    cores = cores_of(str(path), kinds)
    if cores is None and file.cores is not None:
        names = ", ".join(dict.fromkeys(f'"{kind.device.name}"' for kind in kinds))
        raise ClusterError(f"{path}: cores: {file.cores}: devices of preset {names} don't share the host's cores")
    return Cluster(file.name or Path(path).stem, tuple(nodes), tuple(kinds), file.cores or cores)


def _kind(path: str | Path, place: str, node: NodeFile, file: ClusterFile) -> Kind:
    """What the node says, else the file, else the preset."""

    def said(figure: str) -> Any:
        own = getattr(node, figure)
        return getattr(file, figure) if own is None else own

    name = said("preset")
    if name is None:
        raise ClusterError(
            f'{path}: {place}preset: the node names no preset, and the file has no "preset" for all nodes'
        )
    try:
        preset: Preset = load_preset(name)
    except ClusterError as error:
        raise ClusterError(f"{path}: {place if node.preset else ''}preset: {error}") from None
    memory_bytes = said("memory_bytes")
    if memory_bytes is not None:
        figure = preset.memory_bytes.model_copy(update={"value": memory_bytes})
        preset = preset.model_copy(update={"memory_bytes": figure})
    intra, inter = said("intra_node") or preset.intra_node, said("inter_node") or preset.inter_node
    return Kind(preset.device(), intra.link(), inter.link(), said("node_bytes_per_second"))
