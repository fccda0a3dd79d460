"""One model at several numbers of samples: a graph for each stage, which must be the same but for its shapes."""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import PlanError
from partita.graph import Graph


def of_stages(graph: Graph | Sequence[Graph], stages: int) -> tuple[Graph, ...]:
    """The graph of each stage: one of them all, or one each. PlanError for another number."""
    if isinstance(graph, Graph):
        return (graph,) * stages
    if len(graph) != stages:
        raise PlanError(f"{len(graph)} graphs for {stages} stages: one for all, or one for each, is needed")
    return tuple(graph)


def require_alike(graphs: Sequence[Graph]) -> None:
    """PlanError, by name, where one of them has another op, block, parameter or loss than the first."""
    first = graphs[0]
    for other in graphs[1:]:
        if other is first:
            continue
        counts = f'"{first.name}" with {first.samples} samples a turn and with {other.samples}'
        for what, ours, theirs in (
            ("op", _ops(first), _ops(other)),
            ("block", [block.name for block in first.blocks], [block.name for block in other.blocks]),
            ("parameter", _parameters(first), _parameters(other)),
        ):
            if ours != theirs:
                odd = next((a for a, b in zip(ours, theirs, strict=False) if a != b), "the number of them")
                raise PlanError(
                    f"{counts} are captured as other models: {what} {odd} differs, so that stages of unlike samples "
                    "can't be parts of one. Equal numbers in all stages work"
                )
        if first.loss != other.loss:
            raise PlanError(f"{counts} have other losses, {first.loss} and {other.loss}")


def _ops(graph: Graph) -> list[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(op.name, op.kind, op.block, op.inputs, op.outputs) for op in graph.ops]


def _parameters(graph: Graph) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(t.name, t.shape, t.gradient) for t in graph.tensors if t.role == "parameter"]
