"""Reads the inputs of dnn-partitioning (msr-fiddle/dnn-partitioning, throughput and latency inputs alike).

Top level: ``maxFPGAs`` accelerators of ``maxSizePerFPGA`` bytes, ``maxCPUs``, ``nodes``, ``edges``. Latencies are
milliseconds of a sample; ``cost`` is that of moving a node's output between an accelerator and the host's memory, one
number for all edges out of a node. What other fields (``layerId``, ``size`` of an edge) say isn't used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.errors import InputError
from partita.files import read_json
from partita.workload.graph import Profiled, edge_records, field, number, ordered, records


@dataclass(frozen=True)
class PlacementNode:
    """Seconds of a sample on an accelerator (None: it can't be there) and on a CPU; bytes on an accelerator.

    ``moving_seconds``: to bring its output from an accelerator to the host, or back. Nodes of one ``colour`` stay
    together; without one a node has a colour of its own.
    """

    name: str
    accelerator_seconds: float | None
    cpu_seconds: float
    bytes: float
    moving_seconds: float
    backward: bool
    colour: str


@dataclass(frozen=True)
class PlacementFile:
    graph: Profiled[PlacementNode]
    accelerators: int
    cpus: int
    memory_bytes: float


def read_placement(path: str) -> PlacementFile:
    """The file; InputError with file, node or edge, field and value for what can't be used."""
    document = read_json(path)
    top = {name: number(path, "top level", name, field(path, "top level", document, name)) for name in _TOP}
    for name in ("maxFPGAs", "maxCPUs"):
        if top[name] != int(top[name]):
            raise InputError(f"{path}: top level: {name} = {top[name]:g}: a whole number works")
    by_id = records(path, document)
    place_of = {key: place for place, key in enumerate(by_id)}
    pairs: dict[tuple[int, int], None] = {}
    moving: dict[str, float] = {}
    for where, source, target, record in edge_records(path, document, by_id):
        cost = number(path, where, "cost", field(path, where, record, "cost"))
        if abs(moving.setdefault(source, cost) - cost) > 1e-6:
            differ = f"cost = {cost:g}, and {moving[source]:g} on another edge out of {source}"
            raise InputError(f"{path}: {where}: {source} -> {target}: {differ}; one number for all of them works")
        pairs[place_of[source], place_of[target]] = None
    nodes = [_node(path, key, record, moving.get(key, 0.0)) for key, record in by_id.items()]
    for low, high in pairs:
        if nodes[low].backward and not nodes[high].backward:
            raise InputError(f"{path}: edge {nodes[low].name} -> {nodes[high].name} leads from backward to forward")
    graph = ordered(path, nodes, [node.name for node in nodes], list(pairs))
    return PlacementFile(graph, int(top["maxFPGAs"]), int(top["maxCPUs"]), top["maxSizePerFPGA"])


_TOP = ("maxFPGAs", "maxCPUs", "maxSizePerFPGA")


def _node(path: str, key: str, record: Mapping[str, Any], moving: float) -> PlacementNode:
    where = f"node {key}"
    accelerator, cpu = (
        number(path, where, name, field(path, where, record, name)) / 1000 for name in ("fpgaLatency", "cpuLatency")
    )
    flags = []
    for name in ("supportedOnFpga", "isBackwardNode"):
        value = field(path, where, record, name)
        if value not in (0, 1):
            raise InputError(f"{path}: {where}: {name} = {value!r}: true, false, 1 and 0 work")
        flags.append(bool(value))
    size = number(path, where, "size", record.get("size", 0.0))
    given = record.get("name")
    return PlacementNode(
        key if given is None else f"{given}.{key}", accelerator if flags[0] else None, cpu, size, moving / 1000,
        flags[1], f"class {record['colorClass']}" if "colorClass" in record else f"node {key}",
    )  # fmt: skip
