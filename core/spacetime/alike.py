"""One model at several numbers of samples: a graph for each stage, which must fit together where the stages meet.

An export is of one shape, and with one sample some of its ops go (a copy that is none), so that the numbers in the
names of others shift. Blocks, parameters and what blocks hand to each other are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.errors import PlanError
from partita.graph import Graph, Loss, Op
from partita.graph.constant import RANDOM, constant_ops
from partita.spacetime.program import Piece


def of_stages(graph: Graph | Sequence[Graph], stages: int) -> tuple[Graph, ...]:
    """The graph of each stage: one of them all, or one each. PlanError for another number."""
    if isinstance(graph, Graph):
        return (graph,) * stages
    if len(graph) != stages:
        raise PlanError(f"{len(graph)} graphs for {stages} stages: one for all, or one for each, is needed")
    return tuple(graph)


def aligned(graph: Graph, like: Graph) -> Graph:
    """The graph with the names that another of the same model has for what blocks hand on, and for random ops.

    Where a block has other ops, its other names are marked with the samples. PlanError where the blocks differ in what
    they hand on.
    """
    if _ops(graph) == _ops(like):
        return graph
    handed, wanted = handed_on(graph), handed_on(like)
    tensors: dict[str, str] = {}
    ops: dict[str, str] = {}
    for block in like.blocks:
        ours, theirs = graph.block_ops.get(block.name, ()), like.block_ops[block.name]
        if [(op.kind, len(op.outputs)) for op in ours] == [(op.kind, len(op.outputs)) for op in theirs]:
            ops |= {op.name: other.name for op, other in zip(ours, theirs, strict=True)}
            for op, other in zip(ours, theirs, strict=True):
                tensors |= dict(zip(op.outputs, other.outputs, strict=True))
            continue
        ops |= {op.name: f"{op.name} of {graph.samples} samples" for op in ours}
        tensors |= {name: f"{name} of {graph.samples} samples" for op in ours for name in op.outputs}
        if len(_random(ours)) == len(_random(theirs)):
            ops |= {op.name: other.name for op, other in zip(_random(ours), _random(theirs), strict=True)}
        own, other_own = handed.get(block.name, []), wanted.get(block.name, [])
        if len(own) != len(other_own):
            raise _other_models(like, graph, f'block "{block.name}" hands on {len(other_own)} and {len(own)} values')
        tensors |= dict(zip(own, other_own, strict=True))

    def named(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(tensors.get(name, name) for name in names)

    loss = graph.loss
    if loss is not None:
        targets = None if loss.targets is None else tensors.get(loss.targets, loss.targets)
        loss = replace(loss, tensor=tensors.get(loss.tensor, loss.tensor), targets=targets)
    return replace(
        graph, loss=loss, outputs=named(graph.outputs),
        tensors=tuple(replace(t, name=tensors.get(t.name, t.name)) for t in graph.tensors),
        ops=tuple(
            replace(op, name=ops.get(op.name, op.name), inputs=named(op.inputs), outputs=named(op.outputs))
            for op in graph.ops
        ),
    )  # fmt: skip


def require_alike(graphs: Sequence[Graph]) -> None:
    """PlanError, by name, where one of them has other blocks, parameters or values between blocks than the first."""
    # Stages of equal samples have one and the same.
    first, *others = {id(graph): graph for graph in graphs}.values()
    for other in others:
        for what, ours, theirs in (
            ("block", [block.name for block in first.blocks], [block.name for block in other.blocks]),
            ("parameter", _parameters(first), _parameters(other)),
            ("what is handed on from block", [*handed_on(first).items()], [*handed_on(other).items()]),
        ):
            if ours != theirs:
                odd = next((a for a, b in zip(ours, theirs, strict=False) if a != b), "the number of them")
                raise _other_models(first, other, f"{what} {odd} differs")
        if (first.loss and (first.loss.tensor, first.loss.weighting)) != (
            other.loss and (other.loss.tensor, other.loss.weighting)
        ):
            raise _other_models(first, other, f"the losses are {first.loss} and {other.loss}")


def loss_of(graphs: Sequence[Graph], pieces: Sequence[Piece]) -> Loss | None:
    """The loss as the stage that makes it has it: which tokens count is told by values of its own."""
    found = (g.loss for g, piece in zip(graphs, pieces, strict=True) if g.loss and g.loss.tensor in piece.outputs)
    return next(found, graphs[0].loss)


def handed_on(graph: Graph) -> dict[str, list[str]]:
    """By block the values that other blocks read, or the model returns, in the order in which they are made.

    What depends on the batch alone isn't among them: who reads it computes it.
    """
    free, ends = constant_ops(graph), {*graph.outputs, *((graph.loss.tensor,) if graph.loss else ())}
    found: dict[str, list[str]] = {}
    for op in graph.ops:
        for name in op.outputs:
            if op.name not in free and (name in ends or {*graph.readers.get(name, ())} - {op.block}):
                found.setdefault(op.block, []).append(name)
    return found


def _other_models(first: Graph, other: Graph, why: str) -> PlanError:
    return PlanError(
        f'"{first.name}" with {first.samples} samples a turn and with {other.samples} are captured as other models: '
        f"{why}, so that stages of unlike samples can't be parts of one. Equal numbers in all stages work"
    )


def _random(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if op.kind in RANDOM]


def _ops(graph: Graph) -> list[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(op.name, op.kind, op.block, op.inputs, op.outputs) for op in graph.ops]


def _parameters(graph: Graph) -> list[tuple[str, tuple[int, ...], bool]]:
    return sorted((t.name, t.shape, t.gradient) for t in graph.tensors if t.role == "parameter")
