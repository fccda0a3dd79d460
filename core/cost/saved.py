"""What automatic differentiation keeps of the forward pass, by kind of op.

Each tensor counts once, however many ops keep it; a view counts as the memory that it shows. A kind that is not in
the table keeps all it touches and is reported, so that an estimate errs on the safe side and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from partita.cost.kinds import ATTENTION, VIEWS
from partita.graph.model import ITEM_BYTES, Graph, Op
from partita.graph.table import argument

KEEPS_NOTHING = VIEWS | {
    "add", "sub", "neg", "scale", "to", "_to_copy", "cat", "clone", "contiguous", "roll", "pad", "constant_pad_nd",
    "mean", "sum", "rotary", "lift_fresh_copy", "arange", "full", "full_like", "zeros", "ones", "zeros_like",
    "ones_like", "where", "masked_fill", "stack", "repeat", "cumsum", "triu", "tril", "copy", "copy_", "slice_scatter",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d",
}  # fmt: skip
KEEPS_INPUTS = frozenset({
    "linear", "addmm", "baddbmm", "matmul", "mm", "bmm", "conv2d", "mul", "div", "pow", "gelu", "silu", "embedding",
    "index", "gather", "index_select", "layer_norm", "native_layer_norm", "abs", "log", "cos", "sin",
    "maximum", "minimum",
})  # fmt: skip
KEEPS_OUTPUT = frozenset({"softmax", "_softmax", "log_softmax", "relu", "tanh", "sigmoid", "exp", "sqrt", "rsqrt"})


@dataclass(frozen=True)
class Saved:
    """Names of the kept activations (roots of views), and bytes that have no tensor of their own: masks, statistics."""

    tensors: frozenset[str]
    extra_bytes: Mapping[str, float]
    unknown: frozenset[str]


def saved_tensors(
    graph: Graph, ops: Sequence[Op], split: Callable[[str], float], scores: Callable[[Op], float] | None = None,
    item: Callable[[str], int] = ITEM_BYTES.__getitem__, again: Collection[str] = (),
) -> Saved:  # fmt: skip
    """What these ops keep; ``split(name)`` is the part of a tensor that one device has (1/tp or 1).

    ``scores`` gives the bytes that attention keeps beside its inputs where it isn't a fused kernel. ``item``: bytes of
    an element of a dtype; by default as the graph has it. ``again`` are ops that the backward pass computes again: of
    what they touch that is kept which they don't make themselves.

    Extra bytes are listed by op: a dropout's mask (1 byte an element), a norm's statistics and attention's
    log-sum-exp (4 bytes a row), the log-probabilities of a cross entropy, in the dtype of its logits.
    """
    root: dict[str, str] = {}
    tensors: set[str] = set()
    extra: dict[str, float] = {}
    unknown: set[str] = set()
    inside = {name for op in ops if op.name in again for name in op.outputs}
    for op in ops:
        # What another block laid out for each sample has the memory of what it was made from.
        makers = {name: graph.producer[name] for name in op.inputs if name in graph.producer and name not in root}
        root.update({name: maker.inputs[0] for name, maker in makers.items() if maker.kind == "expand"})
        if op.inputs and (op.kind in VIEWS or _drops_nothing(op)):
            source = op.inputs[0]
            root.update(dict.fromkeys(op.outputs, root.get(source, source)))
        if not any(graph.tensor[name].gradient for name in op.outputs):
            continue
        if op.name in again:
            kept, extra_bytes, known = tuple(name for name in op.inputs if name not in inside), 0.0, True
        elif scores is not None and op.kind in ATTENTION:
            kept, extra_bytes, known = op.inputs[:3], scores(op), True  # no bias: it was added
        else:
            kept, extra_bytes, known = _kept(graph, op, split, item)
        tensors.update(root.get(name, name) for name in kept if graph.tensor[name].role in ("value", "input"))
        if extra_bytes:
            extra[op.name] = extra_bytes
        if not known:
            unknown.add(op.kind)
    return Saved(frozenset(tensors), extra, frozenset(unknown))


def _drops_nothing(op: Op) -> bool:
    """A dropout of 0 gives what it was given."""
    return op.kind == "dropout" and not argument(op, 1, "p", 0.5)


def _kept(
    graph: Graph, op: Op, split: Callable[[str], float], item: Callable[[str], int]
) -> tuple[tuple[str, ...], float, bool]:
    """Names of tensors, bytes beside them, and whether the kind is known."""
    elements = graph.tensor[op.outputs[0]].elements * split(op.outputs[0])
    if op.kind in KEEPS_NOTHING:
        return (), 0.0, True
    if op.kind == "rms_norm":
        # As the modules of transformers compute it: a float32 copy of the input, the normed values before the weight.
        rows = elements / max(1, graph.tensor[op.inputs[0]].shape[-1])
        return (), elements * (4.0 + item(graph.tensor[op.outputs[0]].dtype)) + 4.0 * rows, True
    if op.kind == "gelu_new":
        # x, tanh's result, and both factors of the product: 0.5·x and 1 + tanh.
        return op.inputs, 3.0 * elements * item(graph.tensor[op.outputs[0]].dtype), True
    if op.kind in ("layer_norm", "native_layer_norm"):
        return op.inputs[:1], 8.0 * elements / max(1, graph.tensor[op.inputs[0]].shape[-1]), True
    if op.kind == "attention":
        rows = graph.tensor[op.outputs[0]].elements / max(1, graph.tensor[op.outputs[0]].shape[-1])
        return (*op.inputs, *op.outputs), 4.0 * rows * op.attributes["heads"] * split(op.outputs[0]), True
    if op.kind == "scaled_dot_product_attention":
        rows = elements / max(1, graph.tensor[op.outputs[0]].shape[-1])
        return (*op.inputs, *op.outputs), 4.0 * rows, True
    if op.kind in ("dropout", "native_dropout"):
        return (), elements if argument(op, 1, "p", 0.5) else 0.0, True
    if op.kind == "cross_entropy":
        logits = op.inputs[0]
        return op.inputs[1:], item(graph.tensor[logits].dtype) * graph.tensor[logits].elements * split(logits), True
    if op.kind in ("mul", "div") and len(op.inputs) == 1:
        return (), 0.0, True  # by a constant
    if op.kind == "mul" and len(op.inputs) == 2:
        # A factor is kept for the gradient of the other: not a rotated query for that of its constant cosines.
        first, second = (graph.tensor[name].gradient for name in op.inputs)
        return (*op.inputs[: int(second)], *op.inputs[1 : 1 + int(first)]), 0.0, True
    if op.kind in KEEPS_OUTPUT:
        return op.outputs, 0.0, True
    if op.kind in KEEPS_INPUTS:
        return op.inputs, 0.0, True
    return (*op.inputs, *op.outputs), 0.0, False
