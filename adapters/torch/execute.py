"""Run one op of a piece: its operator on local tensors, with the group's collectives where its form needs them.

Random operators are keyed: they draw from a generator that is seeded by (seed, step, micro-batch, op), and by the
tensor-parallel rank where the op works on pieces. So replicas drop the same elements, pieces don't share masks, and
recomputation repeats its mask exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
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


def run(local: LocalOp, tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
    """The op's outputs, in the order of ``local.op.outputs``."""
    op = local.op
    if local.form == "enter":
        return [Enter.apply(tensors[0], context.group)]
    if local.form == "sum":
        return [Sum.apply(tensors[0], context.group)]
    if local.form == "gather":
        return [Gather.apply(tensors[0], op.attributes["dim"], op.attributes["size"], context.group)]
    if local.form == "row":
        return [_row(local, tensors, context)]
    if local.form == "vocabulary":
        return [_vocabulary(local, tensors, context)]
    attributes = op.attributes
    args = [decode(value, list(tensors), context.device) for value in attributes["args"]]
    kwargs = {name: decode(value, list(tensors), context.device) for name, value in attributes["kwargs"].items()}
    with keyed(local, context) if is_random(local) else nullcontext():
        result = operator(attributes["target"])(*args, **kwargs)
    if "items" in attributes:
        return [result[index] for index in attributes["items"]]
    return list(result) if isinstance(result, (list, tuple)) else [result]


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
