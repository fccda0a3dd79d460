"""An op of the model as it stands in a piece: its form, and the sizes in its arguments made local."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.graph import Graph, Op
from partita.graph.table import argument
from partita.spacetime.needs import Need
from partita.spacetime.parts import Part
from partita.spacetime.program import Form

Shapes = tuple[tuple[int, ...], ...]

LINEAR = ("linear", "addmm")


def summed_loss(graph: Graph, op: Op) -> Op:
    """The loss as a sum over tokens: the mean is taken over the global batch, not over a micro-batch."""
    if graph.loss is None or graph.loss.weighting != "tokens" or graph.loss.tensor not in op.outputs:
        return op
    if "target" not in op.attributes:
        return op
    args = [*op.attributes["args"][:2], None, 2, graph.loss.ignore_index]
    return replace(op, attributes=op.attributes | {"args": args, "kwargs": {}})


def form_of(op: Op, class_name: str | None, found: Need, *, scattered: bool) -> Form:
    """The form of an op, of the class of that name or of none.

    ``scattered``: a linear layer's partial products aren't summed right there.
    """
    if not found.axes:
        return "whole"
    if class_name == "vocabulary" and op.kind in ("embedding", "cross_entropy"):
        return "vocabulary"
    if class_name is not None and op.kind in LINEAR:
        return "column" if not found.reduced else "product" if scattered else "row"
    if found.rows and argument(op, 5, "is_causal", False):
        return "queries"
    return "local"


def bias_of(op: Op) -> int | None:
    """Which input of a linear layer is its bias."""
    return (None if len(op.inputs) < 3 else 0 if op.kind == "addmm" else 2) if op.kind in LINEAR else None


def localised(graph: Graph, op: Op, found: Need, shapes: Shapes, sizes: dict[str, int]) -> dict[str, Any]:
    """The op's attributes with the sizes in them made local: target shapes of views, sizes of splits, heads."""
    attributes = dict(op.attributes)
    if "target" not in attributes:
        if op.kind == "attention":
            cut = graph.tensor[op.outputs[0]].shape[-1] // shapes[0][-1]
            attributes |= {key: attributes[key] // cut for key in ("heads", "kv_heads")}
        return attributes
    args = list(attributes["args"])
    if op.kind == "view":
        return attributes | {"target": "aten.reshape.default", "args": [args[0], list(shapes[0])], "kwargs": {}}
    if op.kind == "expand":
        args[1] = list(shapes[0])
    if op.kind == "cross_entropy":
        # The real number of classes: the logits may have padding columns.
        attributes["vocabulary"] = graph.tensor[op.inputs[0]].shape[-1]
    if op.kind == "split":
        cut_dims = {part.dim for part in found.inputs[0].values() if isinstance(part, Part)}
        dim = int(argument(op, 2, "dim", 0)) % len(shapes[0])
        if dim in cut_dims:
            return attributes | {"target": "aten.split.Tensor", "args": [args[0], shapes[0][dim], dim], "kwargs": {}}
    if found.rows and argument(op, 5, "is_causal", False):
        # Which rows a device has follows from its coordinates along these axes, major first.
        attributes["rows"] = [[axis, sizes[axis]] for axis in found.rows]
    return attributes | {"args": args}
