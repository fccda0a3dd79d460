"""What the rules need to know of a captured model: its layers, heads and width."""

from __future__ import annotations

from collections import Counter

from partita.cost.alike import Alike
from partita.graph import Graph


def layer_blocks(groups: Alike) -> range | None:
    """The run of blocks that are alike: the transformer's layers. None where no two blocks are, or where they stand
    apart, as in an encoder with a decoder."""
    kind, count = Counter(groups.kinds).most_common(1)[0]
    first = groups.kinds.index(kind)
    run = range(first, first + count)
    return run if count > 1 and all(groups.kinds[index] == kind for index in run) else None


def heads(graph: Graph) -> int | None:
    """Query heads of the attention that most layers have."""
    found = Counter(op.attributes["heads"] for op in graph.ops if op.kind == "attention")
    found.update(graph.tensor[op.inputs[0]].shape[-3] for op in graph.ops if op.kind == "scaled_dot_product_attention")
    return found.most_common(1)[0][0] if found else None


def width(graph: Graph) -> int | None:
    """The last dim of what most blocks hand to the next: the hidden size."""
    block_of = {name: op.block for op in graph.ops for name in op.outputs}
    found = Counter(
        graph.tensor[name].shape[-1]
        for op in graph.ops
        for name in op.inputs
        if block_of.get(name, op.block) != op.block and name in graph.reached and graph.tensor[name].shape
    )
    return found.most_common(1)[0][0] if found else None
