"""Reads Piper's inputs (msr-fiddle/piper, ``inputs/*.json``).

Top level: ``maxDevices``, ``maxMemoryPerDevice`` (bytes), ``bandwidth`` (bytes/s), ``mbsInBatch``, nodes and edges. A
node has ``TMPCs``: by tensor-parallel degree its ways of running, ``vanilla`` and ``activation recomp``. Times are
taken as seconds of one micro-batch, as Piper's solver takes them, though some of the published files have milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.errors import InputError
from partita.files import read_json
from partita.workload.graph import Profiled, edge_records, field, items, number, ordered, records

WAYS = ("vanilla", "activation recomp")


@dataclass(frozen=True)
class Way:
    """Seconds of a micro-batch; a device needs ``flight_bytes`` for each micro-batch in flight and ``fixed_bytes``."""

    seconds: float
    flight_bytes: float
    fixed_bytes: float

    def bytes(self, flights: int) -> float:
        return self.flight_bytes * flights + self.fixed_bytes


@dataclass(frozen=True)
class Degree:
    """A layer on some devices side by side: its ways, the second one None where it can't be computed again.

    ``parameter_bytes``: on each device. ``entering`` and ``leaving``: bytes beside an edge's own that it takes to come
    from a node, or to go to one, in another stage; by the other node's id.
    """

    vanilla: Way
    recomputed: Way | None
    parameter_bytes: float
    entering: Mapping[str, float]
    leaving: Mapping[str, float]


@dataclass(frozen=True)
class PiperNode:
    """``id``: as the file has it; ``degrees``: by the number of devices side by side."""

    id: str
    name: str
    degrees: Mapping[int, Degree]


@dataclass(frozen=True)
class PiperFile:
    """``edge_bytes``: of the graph's edges, in their order."""

    graph: Profiled[PiperNode]
    edge_bytes: tuple[float, ...]
    devices: int
    memory_bytes: float
    bytes_per_second: float
    micro_batches: int


def read_piper(path: str) -> PiperFile:
    """The file; InputError with file, node or edge, field and value for what can't be used."""
    document = read_json(path)
    whole = {name: number(path, "top level", name, field(path, "top level", document, name)) for name in _TOP}
    for name in ("maxDevices", "mbsInBatch", "bandwidth"):
        if whole[name] < 1 or (name != "bandwidth" and whole[name] != int(whole[name])):
            raise InputError(f"{path}: top level: {name} = {whole[name]:g}: a whole number of 1 or more works")
    nodes = {key: _node(path, key, record) for key, record in records(path, document).items()}
    keys = list(nodes)
    number_of = {key: place for place, key in enumerate(keys)}
    pairs: dict[tuple[int, int], float] = {}
    for where, source, target, record in edge_records(path, document, number_of):
        pair = number_of[source], number_of[target]
        if pair in pairs:
            raise InputError(f"{path}: {where}: {source} -> {target} is there twice")
        pairs[pair] = number(path, where, "communicationCost", field(path, where, record, "communicationCost"))
    graph = ordered(path, list(nodes.values()), keys, list(pairs))
    return PiperFile(
        graph, tuple(pairs.values()), int(whole["maxDevices"]), whole["maxMemoryPerDevice"], whole["bandwidth"],
        int(whole["mbsInBatch"]),
    )  # fmt: skip


_TOP = ("maxDevices", "maxMemoryPerDevice", "bandwidth", "mbsInBatch")


def _node(path: str, key: str, record: Any) -> PiperNode:
    where = f"node {key}"
    degrees = field(path, where, record, "TMPCs")
    if not isinstance(degrees, Mapping) or not degrees:
        raise InputError(f'{path}: {where}: TMPCs: an object such as {{"1": [ways]}} is needed, found {degrees!r:.60}')
    found = {}
    for degree, ways in degrees.items():
        if not degree.isdecimal() or int(degree) < 1:
            raise InputError(f'{path}: {where}: TMPCs has "{degree}"; tensor-parallel degrees such as "1" work')
        found[int(degree)] = _degree(path, f"{where}, degree {degree}", items(path, f"{where}, degree {degree}", ways))
    name = record.get("name")
    return PiperNode(key, key if name is None else f"{name}.{key}", found)


def _degree(path: str, where: str, ways: list[Any]) -> Degree:
    by_name = {field(path, where, way, "id"): way for way in ways}
    if len(by_name) != len(ways) or "vanilla" not in by_name or not set(by_name) <= set(WAYS):
        raise InputError(
            f"{path}: {where}: ways {', '.join(map(repr, by_name)) or 'none'}; one 'vanilla' and at most one "
            "'activation recomp' work"
        )
    numbers = {}
    for name, way in by_name.items():
        seconds, parameters, flight, fixed = (
            number(path, f"{where}, {name}", what, field(path, f"{where}, {name}", way, what))
            for what in ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
        )
        beside = [
            {end: number(path, f"{where}, {name}", f"{what}[{end}]", value) for end, value in way.get(what, {}).items()}
            for what in ("syncTimeFw", "syncTimeBw")
        ]
        numbers[name] = (Way(seconds, flight, fixed), parameters, beside)
    plain = numbers["vanilla"]
    again = numbers.get("activation recomp")
    if again is not None and again[1:] != plain[1:]:
        raise InputError(
            f"{path}: {where}: its two ways differ in parameterSize, syncTimeFw or syncTimeBw; equal ones work"
        )
    return Degree(plain[0], again[0] if again else None, plain[1], plain[2][0], plain[2][1])
