"""The table of signatures proven on torch's own operators: run on pieces and joined, or summed, they give the whole.

Every op of the seven exported families that has a signature is run, once for each kind and shapes, and cut along each
label that its signature says may be cut. Kinds that the families don't call stand in a list below; kinds that only a
configuration gives are run by what they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, reduce
from math import prod
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch.nn import functional as F

from partita.graph import Block, Graph, Op, Tensor
from partita.graph.signature import Dim, Signature
from partita.graph.table import RULES, signature
from partita.plugins.capture_torch.convert import decode
from tests.capture.models import ONE_OF_EACH, exported

CPU = torch.device("cpu")
MANY = 16  # as many pieces at most; what is true of them is true of more
# The input of each kind that is added to the result: on one piece alone where the result is a sum over pieces.
ADDED = {"linear": 2, "addmm": 0, "conv2d": 2}
TRAINING = {"dropout": 2, "native_dropout": 2}  # where the argument stands that makes these random


@dataclass(frozen=True)
class Case:
    op: Op
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def signature(self) -> Signature | None:
        graph = Graph("g", 1, None, (*self.inputs, *self.outputs), (self.op,), (Block("block", ()),), (), ())
        return signature(graph, self.op)

    @property
    def key(self) -> str:
        shapes = [(tensor.shape, tensor.dtype) for tensor in (*self.inputs, *self.outputs)]
        return f"{self.op.kind} {shapes} {json.dumps(self.op.attributes)}"


def case(
    kind: str,
    target: str,
    *shapes: tuple[int, ...],
    args: tuple[Any, ...] = (),
    dtype: str = "float32",
    **attributes: Any,
) -> Case:
    """A case of tensors with these shapes as the first arguments; the outputs' shapes are those that come out."""
    names = tuple(f"i{index}" for index in range(len(shapes)))
    values = [{"tensor": index} for index in range(len(shapes))]
    if target:
        attributes |= {"target": target, "args": [*values, *args], "kwargs": {}}
    op = Op("op", kind, names, ("o",), "block", attributes=attributes)
    inputs = tuple(Tensor(name, shape, dtype) for name, shape in zip(names, shapes, strict=True))
    made = Case(op, inputs, (Tensor("o", shapes[0]),))
    found = run(made, sample(made), [shapes[0]])
    outputs = tuple(
        Tensor(f"o{index}" if index else "o", tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for index, value in enumerate(found)
    )
    return replace(made, op=replace(op, outputs=tuple(tensor.name for tensor in outputs)), outputs=outputs)


@cache
def met() -> dict[str, Case]:
    """Every kind with every shapes and arguments that the exported families call."""
    found = {}
    for name in ONE_OF_EACH:
        graph = exported(name)
        for op in graph.ops:
            sides = (tuple(graph.tensor[key] for key in names) for names in (op.inputs, op.outputs))
            made = Case(op, *sides)
            if op.kind in RULES:
                found.setdefault(made.key, made)
    return found


def listed() -> list[Case]:
    unary = "exp sqrt erf silu sigmoid alias logical_not".split()
    binary = "maximum minimum".split()
    logical = "__and__.Tensor bitwise_and.Tensor bitwise_or.Tensor __or__.Tensor bitwise_not.default".split()
    return [
        *[case(kind, f"aten.{kind}.default", (2, 3, 8)) for kind in unary],
        *[case(kind, f"aten.{kind}.default", (2, 3, 8), (3, 1)) for kind in binary],
        *[case(name.split(".")[0], f"aten.{name}", *[(2, 6)] * (1 + name.endswith("Tensor")), dtype="bool")
          for name in logical],
        case("clamp", "aten.clamp.default", (2, 6), args=(-0.5, 0.5)),
        case("sum", "aten.sum.dim_IntList", (4, 6, 5), args=([1],)),
        case("sum", "aten.sum.dim_IntList", (4, 6, 5), args=([-1], True)),
        case("sum", "aten.sum.default", (4, 6)),
        case("mean", "aten.mean.dim", (4, 6, 5), args=([1],)),
        case("softmax", "aten.softmax.int", (4, 6, 5), args=(1,)),
        case("rms_norm", "", (4, 6, 10), (10,)),
        case("layer_norm", "aten.layer_norm.default", (4, 6, 10), args=([6, 10],)),
        case("matmul", "aten.matmul.default", (3, 1, 5, 8), (4, 8, 6)),
        case("matmul", "aten.matmul.default", (5, 8), (8, 6)),
        case("bmm", "aten.bmm.default", (3, 5, 8), (3, 8, 6)),
        case("addmm", "aten.addmm.default", (1, 6), (5, 8), (8, 6)),
        case("addmm", "aten.addmm.default", (5, 6), (5, 8), (8, 6)),
        case("linear", "", (4, 8), (8, 6), (6,), transposed=True),
        case("conv2d", "aten.conv2d.default", (2, 4, 8, 8), (6, 4, 4, 4), (6,), args=([2, 2], [1, 1])),
        case("adaptive_avg_pool2d", "aten._adaptive_avg_pool2d.default", (2, 4, 6, 6), args=([2, 3],)),
        case("scaled_dot_product_attention", "aten.scaled_dot_product_attention.default",
             (2, 4, 6, 8), (2, 4, 9, 8), (2, 4, 9, 10), (2, 4, 6, 9)),
        case("scaled_dot_product_attention", "aten.scaled_dot_product_attention.default",
             (2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8), args=(None, 0.0, True)),
        case("attention", "", (2, 6, 24), (2, 9, 24), (2, 9, 24), heads=4, kv_heads=4, causal=False),
        case("attention", "", (2, 6, 24), (2, 6, 12), (2, 6, 12), heads=4, kv_heads=2, causal=True),
        case("attention", "", (2, 6, 24), (2, 6, 24), (2, 6, 24), (1, 4, 6, 6), heads=4, kv_heads=4, causal=False),
        case("attention", "", (2, 6, 24), (2, 6, 24), (2, 6, 24), (2, 4, 6, 6), heads=4, kv_heads=4, causal=False),
        case("gelu_new", "", (2, 3, 8)),
        case("rotary", "", (2, 6, 24), head_dim=6),
        case("scale", "", (2, 6), factor=0.25),
        case("cumsum", "aten.cumsum.default", (4, 6, 5), args=(1,)),
        case("topk", "aten.topk.default", (4, 6, 5), args=(2,)),
        case("topk", "aten.topk.default", (4, 6, 5), args=(2, 1)),
    ]  # fmt: skip


def attention(made: Case, tensors: list[torch.Tensor]) -> torch.Tensor:
    """On ``[b, s, (heads d)]``, with as many heads as the piece has."""
    head = made.inputs[0].shape[-1] // made.op.attributes["heads"]
    q, k, v = (x.unflatten(-1, (-1, head)).transpose(1, 2) for x in tensors[:3])
    mask = tensors[3] if len(tensors) > 3 else None
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=made.op.attributes["causal"], enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def rotary(made: Case, tensors: list[torch.Tensor]) -> torch.Tensor:
    size = made.op.attributes["head_dim"]
    heads = tensors[0].unflatten(-1, (-1, size))
    angle = torch.arange(heads.shape[1])[:, None, None] / torch.arange(1, size // 2 + 1)
    first, second = heads.chunk(2, -1)
    turned = (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin())
    return torch.cat(turned, -1).flatten(2)


# What the kinds of a configuration stand for.
MEANING: dict[str, Callable[[Case, list[torch.Tensor]], torch.Tensor]] = {
    "attention": attention,
    "rotary": rotary,
    "scale": lambda made, tensors: tensors[0] * made.op.attributes["factor"],
    "gelu_new": lambda made, tensors: F.gelu(tensors[0], approximate="tanh"),
    "linear": lambda made, tensors: tensors[0] @ tensors[1] + tensors[2],
    "rms_norm": lambda made, tensors: F.rms_norm(tensors[0], tensors[1].shape, tensors[1]),
}


def sample(made: Case) -> list[torch.Tensor]:
    """Random inputs: float64 where the op takes floats, indices within the table."""
    random = torch.Generator().manual_seed(0)
    values = []
    for tensor in made.inputs:
        if tensor.dtype == "bool":
            values.append(torch.rand(tensor.shape, generator=random) < 0.5)
        elif tensor.dtype.startswith("int"):
            rows = {"embedding": 0, "index": 0, "cross_entropy": -1}.get(made.op.kind)
            top = 4 if rows is None else made.inputs[0].shape[rows]
            values.append(torch.randint(top, tensor.shape, generator=random))
        else:
            values.append(torch.randn(tensor.shape, generator=random, dtype=torch.float64))
    if made.op.kind == "cross_entropy":
        values[1][0] = -100
    return values


def run(made: Case, tensors: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """The op on these tensors; ``shapes`` are those that come out, which some operators are told."""
    op = made.op
    if "target" not in op.attributes:
        return [MEANING[op.kind](made, tensors)]
    if op.kind == "view":
        return [tensors[0].reshape(shapes[0])]
    if op.kind == "expand":
        return [tensors[0].expand(shapes[0])]
    args = [decode(value, tensors, CPU) for value in op.attributes["args"]]
    kwargs = {name: decode(value, tensors, CPU) for name, value in op.attributes["kwargs"].items()}
    if op.kind == "split":
        (dim,) = [place for place, size in enumerate(tensors[0].shape) if size != shapes[0][place]]
        return list(tensors[0].split([shape[dim] for shape in shapes], dim))
    if op.kind in TRAINING:
        args[TRAINING[op.kind]] = False
    if op.kind == "scaled_dot_product_attention" and len(args) > 4:
        args[4] = 0.0
    function = reduce(getattr, op.attributes["target"].split("."), torch.ops)
    found = function(*args, **kwargs)
    return list(found) if isinstance(found, tuple | list) else [found]


def dim_of(dims: tuple[Dim, ...], label: str) -> int | None:
    return next((place for place, dim in enumerate(dims) if dim.factors[0] == label), None)


def cut(value: torch.Tensor, dims: tuple[Dim, ...], label: str, pieces: int) -> list[torch.Tensor]:
    """The pieces of a tensor: each of its equal parts is cut, and a device has its piece of every part."""
    place = dim_of(dims, label)
    if place is None:
        return [value] * pieces
    parts = [part.chunk(pieces, place) for part in value.chunk(dims[place].parts, place)]
    return [torch.cat([part[index] for part in parts], place) for index in range(pieces)]


def vocabulary(made: Case, tensors: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Embedding and cross entropy on pieces of the vocabulary, which need to know where their piece starts."""
    table, ids = [piece[0] for piece in tensors], tensors[0][1]
    if made.op.kind == "embedding":
        rows, summed = len(table[0]), []
        for index, piece in enumerate(table):
            local = ids - index * rows
            mine = (local >= 0) & (local < rows)
            summed.append(F.embedding(local.clamp(0, rows - 1), piece) * mine[..., None])
        return [sum(summed)]
    # The op exchanges maxima and sums of exponentials: the result is whole on every device.
    total = torch.stack([piece.logsumexp(-1) for piece in table]).logsumexp(0)
    counted, width = ids != -100, table[0].shape[-1]
    right = sum(
        (piece.gather(-1, (ids - i * width).clamp(0, width - 1)[..., None])[..., 0])
        * ((ids >= i * width) & (ids < (i + 1) * width))
        for i, piece in enumerate(table)
    )
    return [((total - right) * counted).sum() / counted.sum()]


def prove(made: Case) -> list[str]:
    """Cut along every label that may be cut; the labels that were."""
    found = made.signature
    if found is None:
        return []
    values = sample(made)
    shapes = [tensor.shape for tensor in made.outputs]
    whole = run(made, values, shapes)
    done = []
    for label in sorted(found.labels):
        if not found.cuttable(label) or found.sizes[label] < 2:
            continue
        size = found.sizes[label]
        counts = [count for count in range(2, max(size, MANY) + 1) if size % count == 0]
        for pieces in {counts[0], max((count for count in counts if count <= MANY), default=counts[0])}:
            local = [list(each) for each in zip(
                *(cut(v, d, label, pieces) for v, d in zip(values, found.inputs, strict=True)), strict=True
            )]  # fmt: skip
            if label == "vocabulary" and label in found.reduced and len(values) > 1:
                joined = vocabulary(made, local)
            else:
                joined = together(made, found, label, pieces, local)
            for got, want in zip(joined, whole, strict=False):
                torch.testing.assert_close(
                    got, want, rtol=1e-6, atol=1e-6, equal_nan=True, msg=lambda m, at=label: f"{made.key} {at}: {m}"
                )
        done.append(label)
    return done


def together(
    made: Case, found: Signature, label: str, pieces: int, local: list[list[torch.Tensor]]
) -> list[torch.Tensor]:  # fmt: skip
    """The results of all pieces, joined where the label is a dim of the result and summed where it is reduced."""
    results = []
    for index, tensors in enumerate(local):
        added = ADDED.get(made.op.kind)
        if index and label in found.reduced and added is not None and added < len(tensors):
            tensors[added] = torch.zeros_like(tensors[added])
        shapes = []
        for tensor, dims in zip(made.outputs, found.outputs, strict=True):
            place = dim_of(dims, label)
            shapes.append(tuple(s // pieces if p == place else s for p, s in enumerate(tensor.shape)))
        results.append(run(made, tensors, shapes))
        for got, shape in zip(results[-1], shapes, strict=False):
            assert tuple(got.shape) == shape, f"{made.key} {label}"
    joined = []
    for dims, parts in zip(found.outputs, zip(*results, strict=True), strict=False):
        place = dim_of(dims, label)
        if place is not None:
            assert dims[place].parts == 1
            joined.append(torch.cat(parts, place))
        else:
            # A value without the label is a partial sum, or what every piece has alike.
            joined.append(sum(parts) if label in found.reduced else parts[0])
    return joined


@pytest.mark.slow
def test_every_op_of_the_families_on_pieces() -> None:
    cut_labels: dict[str, int] = {}
    for made in met().values():
        if prod(made.outputs[0].shape) > 0:
            cut_labels[made.op.kind] = cut_labels.get(made.op.kind, 0) + len(prove(made))
    assert cut_labels.pop("index") > 0
    idle = {kind for kind, count in cut_labels.items() if not count}
    assert idle <= {"eq", "ge", "gt", "lt", "le", "ne", "__and__", "masked_fill"}, idle
    assert {"linear", "addmm", "scaled_dot_product_attention", "embedding", "cross_entropy", "view"} <= {*cut_labels}


@pytest.mark.parametrize("made", listed(), ids=lambda made: made.op.kind)
def test_ops_of_the_list_on_pieces(made: Case) -> None:
    assert prove(made)


@pytest.mark.parametrize(
    ("kind", "instead"),
    [("softmax", "exp"), ("attention", "scale"), ("layer_norm", "exp"), ("rotary", "exp"), ("matmul", "bmm")],
)
def test_a_wrong_rule_is_noticed(kind: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule of another kind the pieces must not fit, or nothing here would prove anything."""
    made = next(made for made in listed() if made.op.kind == kind)
    if kind == "matmul":
        monkeypatch.setitem(RULES, kind, lambda op, i, o: replace(RULES[instead](op, i, o), reduced=frozenset()))
    else:
        monkeypatch.setitem(RULES, kind, RULES[instead])
    with pytest.raises((AssertionError, RuntimeError)):
        prove(made)


@pytest.mark.slow
def test_every_rule_is_proven() -> None:
    proven = {made.op.kind for made in (*met().values(), *listed())}
    assert set(RULES) - proven == set()
