"""Layers that the families share: each adds its ops to the builder, with parameters named as the module's are.

``path`` is the module's full path in the model. Dropout adds an op only where it can drop something.
"""

from __future__ import annotations

from partita.graph import Tensor
from partita.plugins.capture_huggingface.builder import Builder, Shape

# Activation names of configurations: the op that computes them and its attributes.
ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "gelu": ("gelu", {}),
    "gelu_python": ("gelu", {}),
    # Modules compute it in eight ops, and keep what lies between them.
    "gelu_new": ("gelu_new", {}),
    "gelu_fast": ("gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("gelu", {"approximate": "tanh"}),
    "relu": ("relu", {}),
    "silu": ("silu", {}),
    "swish": ("silu", {}),
    "tanh": ("tanh", {}),
}


def linear(
    b: Builder, x: Tensor, path: str, size: int, *, bias: bool = True, transposed: bool = False,
    weight: Tensor | None = None, bias_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``[.., k] -> [.., size]``; ``weight`` and ``bias_weight`` are given when they are tied to other parameters."""
    k = x.shape[-1]
    if weight is None:
        weight = b.parameter(f"{path}.weight", *((k, size) if transposed else (size, k)))
    if bias and bias_weight is None:
        bias_weight = b.parameter(f"{path}.bias", size)
    inputs = [x, weight, bias_weight] if bias_weight else [x, weight]
    attributes = {"transposed": True} if transposed else {}
    return b.op("linear", inputs, (*x.shape[:-1], size), path, name=path, **attributes)


def layer_norm(b: Builder, x: Tensor, path: str) -> Tensor:
    """Layer norm over the last dim, with weight and bias."""
    weight, bias = b.parameter(f"{path}.weight", x.shape[-1]), b.parameter(f"{path}.bias", x.shape[-1])
    return b.op("layer_norm", [x, weight, bias], x.shape, path, name=path)


def rms_norm(b: Builder, x: Tensor, path: str) -> Tensor:
    """Root mean square norm over the last dim, with weight."""
    return b.op("rms_norm", [x, b.parameter(f"{path}.weight", x.shape[-1])], x.shape, path, name=path)


def embedding(
    b: Builder, ids: Tensor, path: str, rows: int, size: int, *, weight: Tensor | None = None
) -> Tensor:  # fmt: skip
    """``ids [..] -> [.., size]`` from a table of ``rows``; ``weight`` is given when the table is tied."""
    if weight is None:
        weight = b.parameter(f"{path}.weight", rows, size)
    return b.op("embedding", [weight, ids], (*ids.shape, size), path, name=path)


def dropout(b: Builder, x: Tensor, path: str, p: float) -> Tensor:
    """Dropout as a module at ``path``."""
    return b.op("dropout", [x], x.shape, path, name=path, p=p) if p > 0 else x


def activation(b: Builder, x: Tensor, path: str, name: str) -> Tensor:
    """The activation that a configuration names, as a module at ``path``."""
    kind, attributes = ACTIVATIONS[name]
    return b.op(kind, [x], x.shape, path, name=path, **attributes)


def add(b: Builder, x: Tensor, y: Tensor, module: str) -> Tensor:
    """``x + y``; ``y`` may be broadcast over leading dims of size 1."""
    return b.op("add", [x, y], x.shape, module)


def view(b: Builder, x: Tensor, shape: Shape, module: str) -> Tensor:
    """Row-major reshape."""
    return b.op("view", [x], shape, module)


def permute(b: Builder, x: Tensor, dims: tuple[int, ...], module: str) -> Tensor:
    """Reordered dims."""
    return b.op("permute", [x], tuple(x.shape[dim] for dim in dims), module, dims=list(dims))


def slice_dim(b: Builder, x: Tensor, dim: int, start: int, end: int, module: str, step: int = 1) -> Tensor:
    """``x[start:end:step]`` along one dim, ``end`` within its size."""
    size = len(range(start, end, step))
    attributes = {"step": step} if step > 1 else {}
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    return b.op("slice", [x], shape, module, dim=dim, start=start, end=end, **attributes)


def pad(b: Builder, x: Tensor, pads: list[int], module: str, value: int = 0) -> Tensor:
    """``pads``: (before, after) of each dim, last dim first."""
    shape = list(x.shape)
    for index, amount in enumerate(pads):
        shape[-1 - index // 2] += amount
    return b.op("pad", [x], tuple(shape), module, pad=pads, value=value)


def attention(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, module: str, *, heads: int, kv_heads: int | None = None,
    causal: bool = False, bias: Tensor | None = None, p: float = 0.0,
) -> Tensor:  # fmt: skip
    """``q [b, s, (heads d)]``, ``k`` and ``v [b, t, (kv_heads d)]``, ``bias [1 or b, heads, s, t]`` onto the scores."""
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    attributes = {"dropout": p} if p > 0 else {}
    return b.op(
        "attention", inputs, q.shape, module, heads=heads, kv_heads=kv_heads or heads, causal=causal, **attributes
    )
