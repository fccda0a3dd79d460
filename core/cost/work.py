"""The work of one op on one device: the kernels that are issued, what they compute and what they move.

Most ops are one kernel. Attention that isn't fused is several, and an op of a class that is cut along turns comes once
for each shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

from partita.cost.attention import scores
from partita.cost.division import Along, ClassCut, Division, Split
from partita.cost.flops import executed_fraction, op_flops
from partita.cost.kinds import ATTENTION, LOOKUPS, MATMULS, TRANSCENDENTAL
from partita.graph.model import Graph, Op


@dataclass(frozen=True)
class Kernel:
    """FLOPs, bytes of values and of weights that are moved, elements of transcendental functions; what it is.

    ``repeated``: the backward pass computes it again. ``weighted``: it has a gradient of weights. ``product``: m, k, n
    (of a batch of products m is that of all), ``attended``: batch times heads, keys, head dim of fused attention;
    either for the graph's samples on one device.
    """

    flops: float
    activation_bytes: float
    weight_bytes: float
    transcendental: float
    attention: bool
    repeated: bool
    weighted: bool
    kind: str = ""
    product: tuple[float, float, float] | None = None
    attended: tuple[float, float, float] | None = None


def kernels(
    graph: Graph, op: Op, division: Division, cut: ClassCut | None, part: Split, inside: frozenset[str],
    item: Callable[[str], int], along: Along, again: bool,
) -> list[Kernel]:  # fmt: skip
    """The kernels of one op. ``cut``: of the class that it works on pieces of, whose tensors are ``inside``;
    ``again``: the backward pass computes it again, because it is attention's."""
    shards = cut.shards if cut else 1
    values = part.use if cut else part.rest

    def size(name: str) -> float:
        tensor = graph.tensor[name]
        share = part.parameter(name) if tensor.role == "parameter" else values(name)
        return tensor.elements * item(tensor.dtype) * (share / shards if name in inside else share)

    activations, weights = _traffic(graph, op, size)
    trained = any(graph.tensor[name].role == "parameter" and graph.tensor[name].gradient for name in op.inputs)
    flops = _executed(graph, op, division) / _divisor(op, division, cut, along)
    one = Kernel(
        flops=flops,
        activation_bytes=activations,
        weight_bytes=weights,
        transcendental=_transcendental(graph, op, values) / (shards if op.inputs and op.inputs[0] in inside else 1),
        attention=op.kind in ATTENTION and division.attention == "fused",
        repeated=shards > 1 or again,
        weighted=trained and op.kind in MATMULS,
        kind=op.kind,
        product=_product(graph, op, flops, size, item),
        attended=_attended(graph, op, flops) if division.attention == "fused" else None,
    )
    if op.kind in ATTENTION and division.attention == "unfused":
        share = values(op.inputs[0]) / shards
        parts = scores(graph, op).kernels(item(graph.tensor[op.inputs[0]].dtype))
        made = [
            replace(
                one,
                flops=one.flops * flops,
                activation_bytes=(activations / 2 if flops else 0.0) + share * moved,
                kind="matmul" if flops else "softmax",
                product=None,
            )
            for flops, moved in parts
        ]
    else:
        made = [one]
    return made * shards


def _divisor(op: Op, division: Division, cut: ClassCut | None, along: Along) -> int:
    """Devices (and turns) that share an op's FLOPs."""
    divisor = cut.pieces * cut.shards if cut else 1
    # Devices that join have the samples of all of them, for their own experts.
    if not (cut and cut.joins):
        divisor *= division.samples
    if any(name in along for name in op.outputs):
        divisor *= division.context
    return divisor


def copies(
    graph: Graph, ops: Sequence[Op], part: Split, item: Callable[[str], int], division: Division
) -> list[Kernel]:
    """Kernels that a graph doesn't name: views of permuted values, whose elements are written anew in another order; a
    bias that is added to scores which lie in memory."""
    permuted = {name for op in ops if op.kind in ("permute", "transpose") for name in op.outputs}
    found = []
    for op in ops:
        if op.kind in ATTENTION and division.attention == "unfused" and len(op.inputs) > 3:
            width = item(graph.tensor[op.inputs[0]].dtype)
            shards = next((c.pieces for c in division.classes), 1)
            size = 2.0 * width * scores(graph, op).elements / shards
            found.append(Kernel(0.0, size, 0.0, 0.0, False, False, False, "add"))
        if op.kind in ("view", "reshape", "contiguous") and op.inputs[0] in permuted:
            tensors = [graph.tensor[name] for name in (op.inputs[0], *op.outputs)]
            size = fsum(tensor.elements * item(tensor.dtype) for tensor in tensors) * part.rest(op.inputs[0])
            found.append(Kernel(0.0, size, 0.0, 0.0, False, False, False, "copy"))
    return found


def _product(
    graph: Graph, op: Op, flops: float, size: Callable[[str], float], item: Callable[[str], int]
) -> tuple[float, float, float] | None:
    """m, k, n of a matrix product: F/2 = mkn, and each of its three tensors has two of these dims."""
    if op.kind not in MATMULS or not flops:
        return None
    first = 1 if op.kind in ("addmm", "baddbmm") else 0
    left, right, out = (
        size(name) / item(graph.tensor[name].dtype) for name in (*op.inputs[first : first + 2], op.outputs[0])
    )
    if not (left and right and out):
        return None
    k = flops / 2 / out
    if op.kind == "conv2d":
        # Neighbours read the same elements of what it is given: that tensor says nothing about the product.
        n = right / k
        return out / n, k, n
    batch = max(1.0, left * right * out / (flops / 2) ** 2)
    return batch * flops / 2 / right, k, flops / 2 / left


def _attended(graph: Graph, op: Op, flops: float) -> tuple[float, float, float] | None:
    """Batch times heads, keys and head dim of attention: its FLOPs are 4 · queries · keys · head dim of each head."""
    if op.kind not in ATTENTION or not flops:
        return None
    query, keys = graph.tensor[op.inputs[0]].shape, graph.tensor[op.inputs[1]].shape[-2]
    width = query[-1] / op.attributes["heads"] if op.kind == "attention" else query[-1]
    return flops / (4.0 * query[-2] * keys * width * executed_fraction(op)), keys, width


def _executed(graph: Graph, op: Op, division: Division) -> float:
    """The FLOPs that kernels carry out: one that isn't fused computes what the mask hides, too."""
    if op.kind not in MATMULS and op.kind not in ATTENTION:
        return 0.0
    whole = op.kind in ATTENTION and division.attention == "unfused"
    return op_flops(graph, op) * (1.0 if whole else executed_fraction(op))


def _transcendental(graph: Graph, op: Op, values: Callable[[str], float]) -> float:
    """Elements on which a transcendental function is computed."""
    name = op.inputs[0] if op.kind in TRANSCENDENTAL else None
    return graph.tensor[name].elements * values(name) if name else 0.0


def _traffic(graph: Graph, op: Op, size: Callable[[str], float]) -> tuple[float, float]:
    """Bytes that scale with the samples, and bytes of weights."""
    outputs = fsum(size(name) for name in op.outputs)
    if op.kind in LOOKUPS:
        return 2 * outputs, 0.0
    weights = fsum(size(name) for name in op.inputs if graph.tensor[name].role in ("parameter", "buffer"))
    inputs = fsum(size(name) for name in op.inputs if graph.tensor[name].role in ("value", "input"))
    return inputs + outputs, weights
