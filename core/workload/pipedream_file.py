"""Reads PipeDream's profiles (msr-fiddle/pipedream, ``graph.txt``).

One line a node, ``node11 -- ReLU -- forward_compute_time=0.539, backward_compute_time=0.188, activation_size=…,
parameter_size=0.000``, and one an edge, a tab before it: ``node5 -- node6``. Milliseconds of a minibatch and bytes; an
``activation_size`` may be a list, ``[1.0; 2.0]``. What ``-- stage_id=K`` says after a node isn't used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from partita.errors import InputError
from partita.files import read_text
from partita.workload.graph import Profiled, number, ordered

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
FORM = f"NAME -- description -- {'=…, '.join(FIELDS)}=…"


@dataclass(frozen=True)
class PipeDreamNode:
    """Seconds of a minibatch, forward and backward together; bytes of its weights and of its output."""

    name: str
    description: str
    seconds: float
    parameter_bytes: float
    activation_bytes: float


def read_pipedream(path: str) -> Profiled[PipeDreamNode]:
    """The profile without what PipeDream's optimizer leaves out: inputs, and items that nothing reads.

    InputError with file, line, node and field for what can't be read.
    """
    nodes: dict[str, PipeDreamNode] = {}
    edges: list[tuple[str, str, int]] = []
    for line, text in enumerate(read_text(path).split("\n"), 1):
        if text.startswith("\t"):
            parts = text.strip().split(" -- ")
            if len(parts) != 2:
                raise InputError(f'{path}: line {line}: "{text.strip()}": an edge is written "node5 -- node6"')
            edges.append((parts[0], parts[1], line))
        elif text.strip():
            node = _node(path, line, text)
            if node.name in nodes:
                raise InputError(f'{path}: line {line}: node "{node.name}" is there twice')
            nodes[node.name] = node
    if not nodes:
        raise InputError(f"{path}: no node in it; a line is {FORM}")
    for source, target, line in edges:
        for name in (source, target):
            if name not in nodes:
                raise InputError(f'{path}: line {line}: edge "{source} -- {target}": there is no node "{name}"')
    read = {source for source, _, _ in edges}
    kept = [
        node for node in nodes.values()
        if not node.description.startswith("Input")
        and not (node.description.startswith("__getitem__") and node.name not in read)
    ]  # fmt: skip
    if not kept:
        raise InputError(f"{path}: all of its nodes are inputs; there is nothing to plan")
    place = {node.name: index for index, node in enumerate(kept)}
    pairs = [(place[source], place[target]) for source, target, _ in edges if source in place and target in place]
    return ordered(path, kept, list(place), pairs)


def _node(path: str, line: int, text: str) -> PipeDreamNode:
    parts = text.split(" -- ")
    if len(parts) == 4 and re.fullmatch(r"stage_id=\d+", parts[3].strip()):
        parts.pop()
    if len(parts) != 3:
        raise InputError(f'{path}: line {line}: "{text[:60]}": a node is written {FORM}')
    name, description, rest = parts
    where = f'line {line}, node "{name}"'
    fields = dict(item.partition("=")[::2] for item in rest.strip().split(", "))
    if sorted(fields) != sorted(FIELDS):
        raise InputError(f"{path}: {where}: it has {', '.join(fields)}; {', '.join(FIELDS)} are needed")
    forward, backward, activation, parameters = (_sum(path, where, name, fields[name]) for name in FIELDS)
    return PipeDreamNode(name, description, (forward + backward) / 1000, parameters, activation)


def _sum(path: str, where: str, name: str, text: str) -> float:
    """A number, or the sum of a list."""
    listed = text.startswith("[") and text.endswith("]")
    total = 0.0
    for item in text[1:-1].split(";") if listed else [text]:
        try:
            value: object = float(item)
        except ValueError:
            value = item
        total += number(path, where, name, value)
    return total
