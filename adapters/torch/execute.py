"""Run one op of a piece: its operator on local tensors, with the group's collectives where its form needs them.

Random operators are keyed: they draw from a generator that is seeded by (seed, step, micro-batch, op), and by the
tensor-parallel rank where the op works on pieces. So replicas drop the same elements, pieces don't share masks, and
recomputation repeats its mask exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.collectives import Enter, Gather, Sum, vocabulary_cross_entropy, vocabulary_embedding
from partita.errors import ModelError
from partita.graph.table import argument
from partita.plugins.capture_torch.convert import decode
from partita.spacetime.program import LocalOp
from partita.spacetime.transform import RANDOM

# Where an op's probability of dropping stands among its arguments.
PROBABILITY = {"dropout": (1, "p"), "native_dropout": (1, "p"), "scaled_dot_product_attention": (4, "dropout_p")}


@dataclass(frozen=True)
class Context:
    """What an op may need beside its inputs: the device, the group that shares the pieces, the key of random draws."""

    device: torch.device
    group: dist.ProcessGroup | None
    rank: int
    key: tuple[int, ...] = ()


@cache
def operator(target: str) -> Any:
    """The operator of that full name, such as ``aten.linear.default``."""
    found: Any = torch.ops
    try:
        for part in target.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ModelError(f'this torch has no operator "{target}"; capture the graph again with it') from None
    return found


Call = Callable[[Sequence[Tensor], Context], list[Tensor]]


def compiled(local: LocalOp, device: torch.device) -> Call:
    """What runs the op: its outputs, in the order of ``local.op.outputs``, from its inputs and a context.

    All that the graph says is read here, once: a stage calls it for every micro-batch.
    """
    if local.form == "enter":
        return lambda tensors, context: [Enter.apply(tensors[0], context.group)]
    if local.form == "sum":
        return lambda tensors, context: [Sum.apply(tensors[0], context.group)]
    if local.form == "gather":
        dim, size = local.op.attributes["dim"], local.op.attributes["size"]
        return lambda tensors, context: [Gather.apply(tensors[0], dim, size, context.group)]
    if local.form == "row":
        return lambda tensors, context: [_row(local, tensors, context)]
    if local.form == "vocabulary":
        return lambda tensors, context: [_vocabulary(local, tensors, context)]
    call = _operator_call(local, device)
    if not is_random(local):
        return lambda tensors, context: call(tensors)

    def random(tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
        with keyed(local, context):
            return call(tensors)

    return random


def _operator_call(local: LocalOp, device: torch.device) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    attributes = local.op.attributes
    target, items = operator(attributes["target"]), attributes.get("items")
    # Most arguments that are tensors stand alone, the others in a list (cat, index).
    encoded: list[tuple[int | str, Any]] = [*enumerate(attributes["args"]), *attributes["kwargs"].items()]
    alone = [(place, value["tensor"]) for place, value in encoded if isinstance(value, dict) and "tensor" in value]
    lists = [(place, value) for place, value in encoded if _has_tensors(value) and isinstance(value, list)]
    filled = {place for place, _ in (*alone, *lists)}
    fixed = {place: decode(value, [], device) for place, value in encoded if place not in filled}
    positional = [fixed.get(place) for place in range(len(attributes["args"]))]
    named = {name: fixed.get(name) for name in attributes["kwargs"]}

    def call(tensors: Sequence[Tensor]) -> list[Tensor]:
        args, kwargs = positional.copy(), named.copy() if named else named
        for place, index in alone:
            (args if type(place) is int else kwargs)[place] = tensors[index]
        for place, value in lists:
            (args if type(place) is int else kwargs)[place] = decode(value, list(tensors), device)
        result = target(*args, **kwargs)
        if items is not None:
            return [result[index] for index in items]
        return list(result) if isinstance(result, (list, tuple)) else [result]

    return call


def _has_tensors(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_tensors(item) for item in value)
    return isinstance(value, dict) and "tensor" in value


def is_random(local: LocalOp) -> bool:
    """Whether the op draws random numbers: a dropout of 0 doesn't."""
    if local.op.kind in PROBABILITY:
        return bool(argument(local.op, *PROBABILITY[local.op.kind], 0.0))
    return local.op.kind in RANDOM


@contextmanager
def keyed(local: LocalOp, context: Context) -> Iterator[None]:
    """Inside, torch's generators are seeded for this op, micro-batch and (where the op is cut) rank.

    After it they are as before: the user's own draws, such as the order of samples, must not depend on the plan.
    """
    piece = -1 if local.form == "whole" else context.rank
    text = ",".join(str(part) for part in (*context.key, local.op.name, piece))
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    # The one generator that the op draws from: torch.manual_seed would visit those of every device.
    cpu = context.device.type == "cpu"
    generator = torch.default_generator if cpu else torch.cuda.default_generators[context.device.index or 0]
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def _row(local: LocalOp, tensors: Sequence[Tensor], context: Context) -> Tensor:
    """A linear layer whose reduced dim is cut: product, sum over devices, bias."""
    bias, value, weight = split_linear(local, tensors)
    product = value @ (weight if transposed(local) else weight.t())
    total = Sum.apply(product, context.group)
    return total if bias is None else total + bias


def split_linear(local: LocalOp, tensors: Sequence[Any]) -> tuple[Any | None, Any, Any]:
    """(bias or None, input, weight) of a linear or addmm op; works on tensors and on names alike."""
    if local.op.kind == "addmm":
        return tensors[0], tensors[1], tensors[2]
    return (tensors[2] if len(tensors) > 2 else None), tensors[0], tensors[1]


def transposed(local: LocalOp) -> bool:
    """Whether the layer's weight is [in, out]."""
    return local.op.kind == "addmm"


def _vocabulary(local: LocalOp, tensors: Sequence[Tensor], context: Context) -> Tensor:
    assert context.group is not None
    if local.op.kind == "embedding":
        padding = argument(local.op, 2, "padding_idx", -1)
        return vocabulary_embedding(tensors[0], tensors[1], padding if padding >= 0 else None, context.group)
    real, ignore, reduction = loss_arguments(local)
    return vocabulary_cross_entropy(
        tensors[0], tensors[1], real=real, ignore_index=ignore, reduction=reduction, group=context.group
    )


def loss_arguments(local: LocalOp) -> tuple[int, int, str]:
    """(real vocabulary, ignored target, "sum" or "mean") of a cross entropy with its vocabulary cut."""
    reduction = {1: "mean", 2: "sum"}[argument(local.op, 3, "reduction", 1)]
    return local.op.attributes["vocabulary"], argument(local.op, 4, "ignore_index", -100), reduction
