"""Nodes of an exported program to ops of a Graph: names, kinds, arguments as JSON values.

Devices are left out (the runtime puts its own in), assertions with what is computed for them alone and conversions that
change nothing are dropped, tuple outputs become outputs of their op. An operator that writes into its input never gets
here: the program is functionalised first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from partita.errors import ModelError

# Operators that only give the same elements another shape.
_VIEWS = ("reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as", "ravel")
_SPLITS = ("split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")
KINDS = {
    **dict.fromkeys(_VIEWS, "view"),
    **dict.fromkeys(_SPLITS, "split"),
    "cross_entropy_loss": "cross_entropy",
    "_to_copy": "to",
    "_softmax": "softmax",
    "t": "transpose",
    "numpy_T": "permute",
}
IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async")


def kind_of(node: Node) -> str:
    """The op kind of a call: the operator's name without namespace and overload."""
    name = _name_of(node)
    if name is None:
        raise ModelError(f'the exported model calls "{node.target}" (at {node.name}), which is no plain operator')
    return KINDS.get(name, name)


def _name_of(node: Node) -> str | None:
    """The operator's name without namespace and overload; None for what is no operator."""
    return node.target._schema.name.split("::")[1] if isinstance(node.target, torch._ops.OpOverload) else None


def assertions(graph: Graph) -> set[Node]:
    """The calls that assert, and the numbers (no tensors) that are computed for nothing else."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        for_them = bool(node.users) and not isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
        if _name_of(node) in IGNORED or (for_them and found.issuperset(node.users)):
            found.add(node)
    return found


def unchanged(node: Node) -> Node | None:
    """The input that a conversion passes on as it is, or None when it does something."""
    if kind_of(node) not in ("to", "alias") or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    before, after = source.meta["val"], node.meta["val"]
    return source if before.dtype == after.dtype and before.shape == after.shape else None


def encode(value: Any, inputs: list[Node]) -> Any:
    """An argument as a JSON value; a tensor is appended to ``inputs`` and stands as ``{"tensor": i}``.

    ModelError for a size that isn't a number.
    """
    if isinstance(value, Node):
        inputs.append(value)
        return {"tensor": len(inputs) - 1}
    if isinstance(value, (list, tuple)):
        return [encode(item, inputs) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, (torch.device, torch.layout)):
        return {"device": None} if isinstance(value, torch.device) else None
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ModelError(f"an operator of the exported model has an argument of type {type(value).__name__}: {value}")


def decode(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """The reverse of ``encode``, with tensors and a device put in."""
    if isinstance(value, list):
        return [decode(item, tensors, device) for item in value]
    if isinstance(value, dict):
        ((tag, inner),) = value.items()
        if tag == "tensor":
            return tensors[inner]
        if tag == "device":
            return device
        return float(inner) if tag == "float" else getattr(torch, inner)
    return value


def arguments(node: Node) -> tuple[list[Node], dict[str, Any]]:
    """The node's tensor inputs in the order of its arguments, and its attributes: ``target``, ``args``, ``kwargs``."""
    inputs: list[Node] = []
    args = encode(list(node.args), inputs)
    kwargs = {
        key: encode(value, inputs)
        for key, value in node.kwargs.items()
        if key not in ("layout", "pin_memory") and value is not None
    }
    if isinstance(node.target, torch._ops.OpOverload):
        names = [argument.name for argument in node.target._schema.arguments]
        # Factories inherit the meta device from the export unless told otherwise.
        if "device" in names and node.target._schema.name.split("::")[1] not in ("to", "_to_copy"):
            kwargs["device"] = {"device": None}
        if "device" in kwargs and kind_of(node) == "to":
            kwargs["device"] = {"device": None}
    attributes = {"target": str(node.target), "args": args, "kwargs": kwargs}
    return inputs, attributes
