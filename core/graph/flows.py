"""Dims that flow through the whole model: its samples (``batch``) and its tokens (``sequence``).

A class of dims (``graph.cuts``) begins and ends inside one block; a flow runs through all of them. It starts at the
dims of the values that blocks hand to each other and follows the ops' signatures to every tensor that has such a dim,
alone or as a factor of a merged one. What an op needs whole is put together before it (``spacetime``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

from partita.graph.cuts import SUMS
from partita.graph.model import Graph, Op
from partita.graph.signature import Dim, Signature
from partita.graph.table import argument, signature

FLOWS = ("batch", "sequence")

Node = tuple[str, int]
# For each flow the tensor dims that have it: such a dim consists of so many equal parts, each of which is cut.
Tags = Mapping[str, Mapping[Node, int]]


def label_of(found: Signature, dim: Dim, parts: int) -> tuple[str, int] | None:
    """The factor of a dim that is cut when each of so many equal parts of the dim is, and its own parts."""
    before = dim.parts
    for factor in dim.factors:
        size = found.sizes.get(factor)
        if size is None or parts < before * size:
            return (factor, parts // before) if parts % before == 0 else None
        before *= size
    return None


def parts_of(found: Signature, dim: Dim, label: str, parts: int) -> int:
    """The equal parts of a dim when its factor ``label`` is cut in each of ``parts``: the other way round."""
    before = dim.parts
    for factor in dim.factors[: dim.factors.index(label)]:
        before *= found.sizes[factor]
    return before * parts


def flowing(graph: Graph, op: Op, found: Signature, label: str) -> Literal["cut", "sum"] | None:
    """What an op makes of pieces of a label: pieces (``cut``), partial sums (``sum``), or it needs it whole (None)."""
    if label in found.placed:
        if op.kind != "cross_entropy":
            return "cut"
        return "sum" if _summed(graph, op) else None
    if label in found.fixed:
        return None
    if label not in found.reduced:
        return "cut"
    # A table or a weight isn't cut by a flow; a convolution would have its bias in every piece.
    known = any(
        graph.tensor[name].role == "parameter" and any(label in dim.factors for dim in dims)
        for name, dims in zip(op.inputs, found.inputs, strict=True)
    )
    alone = all(any(label in dim.factors for dim in dims) for dims in found.inputs)
    return "sum" if op.kind in SUMS and alone and not known else None


def worked_on(graph: Graph, op: Op, found: Signature, tags: Mapping[Node, int]) -> tuple[str, int, bool] | None:
    """The label along which the op works on pieces of what flows, its parts, and whether it makes partial sums."""
    sums = None
    for name, dims in zip((*op.outputs, *op.inputs), (*found.outputs, *found.inputs), strict=True):
        for position, dim in enumerate(dims):
            if (name, position) not in tags or (at := label_of(found, dim, tags[name, position])) is None:
                continue
            how = flowing(graph, op, found, at[0])
            if how == "cut":
                return (*at, False)
            if how == "sum" and sums is None:
                sums = (*at, True)
    return sums


def _summed(graph: Graph, op: Op) -> bool:
    """Whether a cross entropy is a sum over tokens: by itself, or because it is the loss and the step divides it."""
    loss = graph.loss is not None and graph.loss.weighting == "tokens" and graph.loss.tensor in op.outputs
    return loss or argument(op, 3, "reduction", 1) == 2


def flow_tags(graph: Graph, flows: tuple[str, ...] = FLOWS) -> Tags:
    """The dims of every tensor that have each flow."""
    if not flows:
        return {}
    signatures = {op.name: found for op in graph.ops if (found := signature(graph, op)) is not None}
    users: dict[str, list[Op]] = defaultdict(list)
    for op in graph.ops:
        if op.name in signatures:
            for name in dict.fromkeys((*op.inputs, *op.outputs)):
                users[name].append(op)
    result: dict[str, dict[Node, int]] = {}
    for flow in flows:
        tags: dict[Node, int] = {}
        for seed in _seeds(graph, flow):
            # What has the flow already has it elsewhere: the second dim of a bias that layers share is that of heads.
            if any((seed[0], dim) in tags for dim in range(len(graph.tensor[seed[0]].shape))):
                continue
            tags[seed] = 1
            pending = [seed]
            while pending:
                node = pending.pop()
                for op in users[node[0]]:
                    for other, parts in _across(graph, op, signatures[op.name], node, tags[node]):
                        if other not in tags:
                            tags[other] = parts
                            pending.append(other)
        result[flow] = tags
    return result


def _across(graph: Graph, op: Op, found: Signature, node: Node, parts: int) -> list[tuple[Node, int]]:
    """The dims of an op's tensors that have the flow because ``node`` has it."""
    sides = list(zip((*op.inputs, *op.outputs), (*found.inputs, *found.outputs), strict=True))
    result = []
    for name, dims in sides:
        at = label_of(found, dims[node[1]], parts) if name == node[0] else None
        if at is None or flowing(graph, op, found, at[0]) is None:
            continue
        for other, places in sides:
            for position, dim in enumerate(places):
                if at[0] in dim.factors:
                    result.append(((other, position), parts_of(found, dim, *at)))
    return result


def _seeds(graph: Graph, flow: str) -> list[Node]:
    """Dims of inputs and of values that blocks hand on: the first is that of samples, the second that of tokens."""
    block = {name: op.block for op in graph.ops for name in op.outputs}
    crossing = dict.fromkeys(
        name
        for op in graph.ops
        for name in op.inputs
        if name in graph.reached and block.get(name, op.block) != op.block
    )
    inputs = [name for name in graph.inputs if name in graph.tensor]
    if flow == "batch":
        shapes = [(name, graph.tensor[name].shape) for name in (*inputs, *crossing)]
        return [(name, 0) for name, shape in shapes if shape and shape[0] == graph.samples]
    tokens = [name for name in inputs if len(graph.tensor[name].shape) == 2]
    return [(name, 1) for name in (*tokens, *(name for name in crossing if len(graph.tensor[name].shape) > 2))]
