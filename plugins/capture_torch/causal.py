"""Attention masks that turn out to be causal: said so, because kernels skip what a causal mask hides.

Models build their masks from positions, and ``torch.export`` shows the ops of it. Where no input of the batch is among
them the mask is computed here, and if it is the lower triangle the attention is marked causal and reads no mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from partita.graph import Op, Tensor
from partita.plugins.capture_torch.convert import decode

# Masks of more elements (16,384 tokens squared) are not computed: it would take seconds and GiBs.
LARGEST = 2**28
MASK, PROBABILITY = 3, 4


def mark_causal(ops: Sequence[Op], tensors: Mapping[str, Tensor], buffers: Mapping[str, torch.Tensor]) -> list[Op]:
    """The ops, those attentions marked causal whose mask is."""
    makers = {name: op for op in ops for name in op.outputs}
    known: dict[str, torch.Tensor | None] = {name: buffer.cpu() for name, buffer in buffers.items()}
    verdict: dict[str, bool] = {}
    found = []
    for op in ops:
        mask = _mask(op)
        if mask is not None:
            if mask not in verdict:
                verdict[mask] = _triangle(mask, makers, tensors, known)
            if verdict[mask]:
                op = _marked(op)
        found.append(op)
    return found


def _mask(op: Op) -> str | None:
    """The mask that an attention reads, if it is square and the last of what it reads."""
    if op.kind != "scaled_dot_product_attention":
        return None
    args = op.attributes["args"]
    given = args[MASK] if len(args) > MASK else op.attributes["kwargs"].get("attn_mask")
    last = {"tensor": len(op.inputs) - 1}
    return op.inputs[-1] if given == last and len(op.inputs) == MASK + 1 else None


def _marked(op: Op) -> Op:
    args, kwargs = list(op.attributes["args"]), dict(op.attributes["kwargs"])
    kwargs.pop("attn_mask", None)
    probability = args[PROBABILITY] if len(args) > PROBABILITY else kwargs.pop("dropout_p", 0.0)
    kwargs.pop("is_causal", None)
    changed = {"args": [*args[:MASK], None, probability, True], "kwargs": kwargs}
    return replace(op, inputs=op.inputs[:-1], attributes=op.attributes | changed)


def _triangle(
    name: str, makers: Mapping[str, Op], tensors: Mapping[str, Tensor], known: dict[str, torch.Tensor | None]
) -> bool:
    shape = tensors[name].shape
    if len(shape) < 2 or shape[-1] != shape[-2] or tensors[name].elements > LARGEST:
        return False
    mask = _value(name, makers, known)
    if mask is None:
        return False
    seen = torch.ones(shape[-2:], dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return bool((mask == seen).all())
    if not mask.is_floating_point():
        return False
    # What is hidden has minus infinity, or the least number there is, which is as good.
    hides = mask <= torch.finfo(mask.dtype).min / 2
    return bool(((mask == 0) == seen).all() and (hides == ~seen).all())


def _value(name: str, makers: Mapping[str, Op], known: dict[str, torch.Tensor | None]) -> torch.Tensor | None:
    """The value of a constant; None where it depends on the batch, a parameter or chance."""
    pending = [name]
    while pending:
        current = pending[-1]
        if current in known:
            pending.pop()
            continue
        op = makers.get(current)
        if op is None or len(op.outputs) != 1 or "target" not in op.attributes:
            known[current] = None
            continue
        missing = [one for one in op.inputs if one not in known]
        if missing:
            pending += missing
            continue
        inputs = [known[one] for one in op.inputs]
        known[current] = None if any(one is None for one in inputs) else _computed(op, inputs)
    return known[name]


def _computed(op: Op, inputs: Sequence[Any]) -> torch.Tensor | None:
    attributes = op.attributes
    target: Any = torch.ops
    for part in attributes["target"].split("."):
        target = getattr(target, part)
    if torch.Tag.nondeterministic_seeded in target.tags:
        return None
    device = torch.device("cpu")
    args = [decode(value, list(inputs), device) for value in attributes["args"]]
    kwargs = {key: decode(value, list(inputs), device) for key, value in attributes["kwargs"].items()}
    with torch.no_grad():
        result = target(*args, **kwargs)
    return result if isinstance(result, torch.Tensor) else None
