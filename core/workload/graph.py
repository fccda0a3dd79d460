"""A graph of profiled nodes, as other planners' files have it: its nodes in a topological order, and its edges."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isfinite
from typing import Any, Generic, TypeVar

from partita.errors import InputError

N = TypeVar("N")


@dataclass(frozen=True)
class Profiled(Generic[N]):
    """The nodes of a file, each after those that it reads from, and its edges as pairs of their numbers."""

    path: str
    nodes: tuple[N, ...]
    edges: tuple[tuple[int, int], ...]


def ordered(path: str, nodes: Sequence[N], names: Sequence[str], edges: Sequence[tuple[int, int]]) -> Profiled[N]:
    """The graph with its nodes in a topological order, edges in their own. InputError where they make a circle."""
    place = {node: index for index, node in enumerate(topological(path, names, edges))}
    return Profiled(
        path, tuple(nodes[node] for node in place), tuple((place[source], place[target]) for source, target in edges)
    )


def topological(path: str, names: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The nodes' numbers so that every edge leads forward, the smallest first among those that could be next."""
    waits = [0] * len(names)
    targets: list[list[int]] = [[] for _ in names]
    for source, target in edges:
        waits[target] += 1
        targets[source].append(target)
    ready = [node for node, count in enumerate(waits) if not count]
    heapify(ready)
    found = []
    while ready:
        node = heappop(ready)
        found.append(node)
        for target in targets[node]:
            waits[target] -= 1
            if not waits[target]:
                heappush(ready, target)
    if len(found) < len(names):
        circle = " -> ".join(names[node] for node in _circle(set(range(len(names))) - set(found), edges))
        raise InputError(f"{path}: the edges make a circle: {circle}; a graph without circles works")
    return found


def _circle(left: set[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """One circle, its first node also last. Each node that is left waits for another one that is left."""
    source_of = {target: source for source, target in edges if source in left and target in left}
    walk = [min(left)]
    while walk.count(walk[-1]) < 2:
        walk.append(source_of[walk[-1]])
    return walk[walk.index(walk[-1]) :][::-1]


def number(path: str, node: str, field: str, value: Any) -> float:
    """A finite number of 0 or more; InputError with file, node, field and what stands there."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise InputError(f"{path}: {node}: {field} = {value!r}: a finite number of 0 or more works")
    return float(value)


def field(path: str, node: str, record: Any, name: str) -> Any:
    """A field of a JSON object; InputError where it isn't there, or the record is no object."""
    if not isinstance(record, Mapping):
        raise InputError(f"{path}: {node}: an object is needed, found {type(record).__name__}")
    if name not in record:
        raise InputError(f'{path}: {node}: the field "{name}" is missing; there are {", ".join(record) or "none"}')
    return record[name]


def items(path: str, name: str, value: Any) -> list[Any]:
    """A JSON list; InputError where it is none."""
    if not isinstance(value, list):
        raise InputError(f"{path}: {name}: a list is needed, found {type(value).__name__}")
    return value


def records(path: str, document: Any) -> dict[str, Mapping[str, Any]]:
    """The list ``nodes`` of a JSON file, by the ids of its objects; InputError where one is there twice, or none is."""
    found: dict[str, Mapping[str, Any]] = {}
    for place, record in enumerate(items(path, "nodes", field(path, "top level", document, "nodes"))):
        key = str(field(path, f"node {place + 1} of the list", record, "id"))
        if key in found:
            raise InputError(f"{path}: node {key} is there twice")
        found[key] = record
    if not found:
        raise InputError(f"{path}: nodes is empty; there is nothing to plan")
    return found


def edge_records(path: str, document: Any, nodes: Container[str]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Each of the list ``edges``: where it stands, the ids of its source and its target, and all of it; InputError
    where one of these is no node."""
    for place, record in enumerate(items(path, "edges", field(path, "top level", document, "edges"))):
        where = f"edge {place + 1} of the list"
        source, target = (str(field(path, where, record, name)) for name in ("sourceId", "destId"))
        for end in (source, target):
            if end not in nodes:
                raise InputError(f"{path}: {where}: {source} -> {target}: there is no node {end}")
        yield where, source, target, record
