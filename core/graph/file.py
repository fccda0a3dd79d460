"""Graphs as JSON files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from partita.errors import InputError, ModelError
from partita.files import parse_json, write_text
from partita.graph.model import Graph, check


@cache
def _adapter() -> TypeAdapter[Graph]:
    return TypeAdapter(Graph)


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write a graph; the file appears whole or not at all."""
    write_text(path, _adapter().dump_json(graph, indent=1).decode() + "\n")


def load_graph(path: str | Path) -> Graph:
    """Read a graph that ``save_graph`` wrote; InputError names the file, the field and what is wrong with it."""
    graph = parse_json(path, _adapter())
    try:
        return check(graph)
    except ModelError as error:
        raise InputError(f"{path}: {error}") from None
