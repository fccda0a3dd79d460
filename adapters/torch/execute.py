"""Run one op of a piece: its operator on local tensors, with the group's collectives where its form needs them.

Random operators are keyed: they draw from a generator that is seeded by (seed, step, micro-batch, op), and by the
tensor-parallel rank where the op works on pieces. So replicas drop the same elements, pieces don't share masks, and
recomputation repeats its mask exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from partita.adapters.torch.collectives import (
    Enter,
    Exchange,
    Gather,
    GatherEntered,
    Scatter,
    Slice,
    Sum,
    vocabulary_cross_entropy,
    vocabulary_embedding,
)
from partita.adapters.torch.put_off import PutOff, product
from partita.adapters.torch.wires import Group
from partita.errors import ModelError
from partita.graph.constant import RANDOM
from partita.graph.table import argument
from partita.plugins.capture_torch.convert import decode
from partita.spacetime.program import COLLECTIVES, LocalOp

# Where an op's probability of dropping stands among its arguments.
PROBABILITY = {"dropout": (1, "p"), "native_dropout": (1, "p"), "scaled_dot_product_attention": (4, "dropout_p")}


@dataclass(frozen=True)
class Context:
    """What an op may need beside its inputs: the device, the groups and its coordinates along the inner axes of the
    stage, the key of random draws. Along an axis without a group the device is alone. ``draw``, where there is one,
    stands for the ops that draw random numbers."""

    device: torch.device
    groups: Mapping[str, Group] = field(default_factory=dict)
    coordinates: Mapping[str, int] = field(default_factory=dict)
    key: tuple[int, ...] = ()
    put_off: PutOff | None = None
    draw: Callable[[LocalOp, Sequence[Tensor], Context], list[Tensor]] | None = None

    def group(self, local: LocalOp) -> Group:
        """The group that an op's form speaks of."""
        return self.groups[local.axes[-1]]


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
    if local.form in COLLECTIVES:
        return _collective(local)
    if local.form == "product":
        return lambda tensors, context: [_product(local, tensors, context)]
    if local.form == "bias":
        return lambda tensors, context: [tensors[0] + tensors[1]]
    if local.form == "row":
        return lambda tensors, context: [_row(local, tensors, context)]
    if local.form == "vocabulary":
        return lambda tensors, context: [_vocabulary(local, tensors, context)]
    call = _operator_call(local, device)
    if local.form == "queries":
        call = _operator_call(_masked(local), device)
    elif local.op.kind == "linear" or _plain_addmm(local):
        return lambda tensors, context: (
            call(tensors) if context.put_off is None else [_put_off(local, tensors, context)]
        )
    elif not is_random(local):
        return lambda tensors, context: call(tensors)

    def run(tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
        if local.form == "queries":
            tensors = [*tensors, _rows_mask(local, tensors, context)]
        if context.draw is not None and is_random(local):
            return context.draw(local, tensors, context)
        with keyed(local, context) if is_random(local) else nullcontext():
            return call(tensors)

    return run


def _collective(local: LocalOp) -> Call:
    """What stands between ops: by its form, over the group of its axis."""
    attributes = local.op.attributes
    dim, parts, size = (attributes.get(key) for key in ("dim", "parts", "size"))
    source, target = ((at["dim"], at["parts"]) if (at := attributes.get(key)) else None for key in ("source", "target"))
    apply: Callable[[Tensor, Group], Tensor] = {
        "enter": Enter.apply,
        "sum": Sum.apply,
        "scatter": lambda tensor, group: Scatter.apply(tensor, dim, parts, group),
        "slice": lambda tensor, group: Slice.apply(tensor, dim, parts, group),
        "gather": lambda tensor, group: Gather.apply(tensor, dim, parts, size, group),
        "gather_entered": lambda tensor, group: GatherEntered.apply(tensor, dim, parts, size, group),
        "exchange": lambda tensor, group: Exchange.apply(tensor, source, target, group),
    }[local.form]
    return lambda tensors, context: [apply(tensors[0], context.group(local))]


def _masked(local: LocalOp) -> LocalOp:
    """A causal attention as one that reads its mask as its last input."""
    attributes = local.op.attributes
    place = {"tensor": len(local.op.inputs)}
    args = [*attributes["args"][:3], place, argument(local.op, 4, "dropout_p", 0.0), False]
    named = {k: v for k, v in attributes["kwargs"].items() if k not in ("attn_mask", "dropout_p", "is_causal")}
    return replace(local, op=replace(local.op, attributes=attributes | {"args": args, "kwargs": named}))


def _rows_mask(local: LocalOp, tensors: Sequence[Tensor], context: Context) -> Tensor:
    """Which keys [t] each of the device's rows [s] sees: those up to its own place in the whole."""
    place = 0
    for axis, size in local.op.attributes["rows"]:
        place = place * size + context.coordinates[axis]
    rows, keys = tensors[0].shape[-2], tensors[1].shape[-2]
    return torch.ones(rows, keys, dtype=torch.bool, device=tensors[0].device).tril(place * rows)


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
    # Along an axis that doesn't cut the op all draw alike.
    piece = (context.coordinates[axis] for axis in local.axes)
    text = ",".join(str(part) for part in (*context.key, local.op.name, *piece))
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


def _product(local: LocalOp, tensors: Sequence[Tensor], context: Context) -> Tensor:
    """A linear layer without its bias."""
    value, weight = tensors
    return product(value, weight, not transposed(local), context.put_off)


def _plain_addmm(local: LocalOp) -> bool:
    """Whether it is a bias and a product, neither of them scaled."""
    return local.op.kind == "addmm" and len(local.op.attributes["args"]) == 3 and not local.op.attributes["kwargs"]


def _put_off(local: LocalOp, tensors: Sequence[Tensor], context: Context) -> Tensor:
    """A linear layer whose weight gradient is computed later."""
    bias, value, weight = split_linear(local, tensors)
    found = product(value, weight, not transposed(local), context.put_off)
    return found if bias is None else found + bias


def _row(local: LocalOp, tensors: Sequence[Tensor], context: Context) -> Tensor:
    """A linear layer whose reduced dim is cut: product, sum over devices, bias."""
    bias, value, weight = split_linear(local, tensors)
    total = Sum.apply(product(value, weight, not transposed(local), context.put_off), context.group(local))
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
    if local.op.kind == "embedding":
        padding = argument(local.op, 2, "padding_idx", -1)
        return vocabulary_embedding(tensors[0], tensors[1], padding if padding >= 0 else None, context.group(local))
    real, ignore, reduction = loss_arguments(local)
    return vocabulary_cross_entropy(
        tensors[0], tensors[1], real=real, ignore_index=ignore, reduction=reduction, group=context.group(local)
    )


def loss_arguments(local: LocalOp) -> tuple[int, int, str]:
    """(real vocabulary, ignored target, "sum" or "mean") of a cross entropy with its vocabulary cut."""
    reduction = {1: "mean", 2: "sum"}[argument(local.op, 3, "reduction", 1)]
    return local.op.attributes["vocabulary"], argument(local.op, 4, "ignore_index", -100), reduction
