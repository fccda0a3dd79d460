"""The signature of every kind of op that is known: one line a kind, a small function where shapes decide.

A kind that isn't here has no signature: ``signature`` returns None, the op is then replicated and reported by name,
never guessed. Kinds are those of ``torch.export``'s operators without namespace and overload (``linear``, ``view``),
plus the coarser ones that configuration readers emit (``attention``, ``rotary``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

from partita.graph.model import Graph, Op
from partita.graph.signature import Dim, Signature, bind, parse
from partita.graph.views import view_signature

Shape = tuple[int, ...]
Rule = Callable[[Op, list[Shape], list[Shape]], Signature | None]


def signature(graph: Graph, op: Op) -> Signature | None:
    """The op's signature with the sizes of its labels bound, or None for a kind that isn't known."""
    rule = RULES.get(op.kind)
    if rule is None:
        return None
    inputs = [graph.tensor[name].shape for name in op.inputs]
    outputs = [graph.tensor[name].shape for name in op.outputs]
    found = rule(op, inputs, outputs)
    return None if found is None else bind(found, inputs, outputs)


def _labels(count: int, prefix: str = "a") -> list[str]:
    return [f"{prefix}{index}" for index in range(count)]


@cache
def _single(*labels: str) -> tuple[Dim, ...]:
    return tuple(Dim((label,)) for label in labels)


def pointwise(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    """Every dim of the output may be cut; an input's dim of size 1 is broadcast and stays whole."""
    rank = len(outputs[0])
    names = _labels(rank)
    ones: set[str] = set()
    sides = []
    for index, shape in enumerate(inputs):
        offset, dims = rank - len(shape), []
        for position, size in enumerate(shape):
            label = names[offset + position]
            if size != outputs[0][offset + position]:
                label = f"one{index}_{position}"
                ones.add(label)
            dims.append(Dim((label,)))
        sides.append(tuple(dims))
    return Signature(tuple(sides), tuple(_single(*names) for _ in outputs), frozenset(), frozenset(ones))


def _keeping(fixed_dims: Callable[[Op, int], set[int]]) -> Rule:
    """Rule of ops whose output has the input's dims, some of which may not be cut; further inputs stay whole."""

    def rule(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
        rank = len(inputs[0])
        names, whole = _labels(rank), fixed_dims(op, rank)
        fixed = {names[dim] for dim in whole}
        result = []
        for position, (name, before, after) in enumerate(zip(names, inputs[0], outputs[0], strict=True)):
            if before != after:
                assert position in whole, f"{op.kind} changes dim {position} of {inputs[0]}"
                name = f"out{position}"
                fixed.add(name)
            result.append(name)
        sides = [_single(*names)]
        for index, shape in enumerate(inputs[1:]):
            extra = _labels(len(shape), f"x{index}_")
            fixed.update(extra)
            sides.append(_single(*extra))
        return Signature(tuple(sides), (_single(*result),), frozenset(), frozenset(fixed))

    return rule


def argument(op: Op, position: int, name: str, default: Any = None) -> Any:
    """An argument of an executable op, by position or name, or an attribute of a configuration's op."""
    args = op.attributes.get("args", ())
    if position < len(args):
        return args[position]
    return op.attributes.get("kwargs", {}).get(name, op.attributes.get(name, default))


def _dims(value: Any, rank: int) -> set[int]:
    values = range(rank) if value is None else [value] if isinstance(value, int) else value
    return {int(dim) % rank for dim in values} if rank else set()


def _norm_dims(op: Op, rank: int) -> set[int]:
    shape = argument(op, 1, "normalized_shape", [0])
    return set(range(rank - len(shape), rank))


def linear(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    lead = _labels(len(inputs[0]) - 1)
    weight = ("k", "n") if op.attributes.get("transposed") else ("n", "k")
    sides = [_single(*lead, "k"), _single(*weight), _single("n")]
    return Signature(tuple(sides[: len(inputs)]), (_single(*lead, "n"),), frozenset({"k"}))


def addmm(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    """``added + left @ right``, where ``added`` is broadcast to the result."""
    added = pointwise(op, inputs[:1], outputs)
    names = dict(zip((dim.factors[0] for dim in added.outputs[0]), ("m", "n"), strict=True))
    side = _single(*(names.get(dim.factors[0], dim.factors[0]) for dim in added.inputs[0]))
    return Signature((side, _single("m", "k"), _single("k", "n")), (_single("m", "n"),), frozenset({"k"}), added.fixed)


def matmul(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature | None:
    left, right = inputs[0], inputs[1]
    if len(left) < 2 or len(right) < 2:
        return None
    rank = len(outputs[0])
    names = [*_labels(rank - 2), "m", "n"]
    ones: set[str] = set()
    sides = []
    for index, (shape, tail) in enumerate(((left, ("m", "k")), (right, ("k", "n")))):
        batch = []
        for position, size in enumerate(shape[:-2]):
            place = rank - len(shape) + position
            label = names[place]
            if size != outputs[0][place]:
                label = f"one{index}_{position}"
                ones.add(label)
            batch.append(label)
        sides.append(_single(*batch, *tail))
    return Signature(tuple(sides), (_single(*names),), frozenset({"k"}), frozenset(ones))


def attention4(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    """Attention on [..., heads, s, d]: heads and query positions may be cut, key positions and d not."""
    lead = _labels(len(inputs[0]) - 3)
    causal = bool(argument(op, 5, "is_causal", False))
    sides = [_single(*lead, "heads", "s", "d"), _single(*lead, "heads", "t", "d"), _single(*lead, "heads", "t", "e")]
    fixed = {"t", "d", "e"} | ({"s"} if causal else set())
    if len(inputs) > 3:
        wanted = [*lead, "heads", "s", "t"][-len(inputs[3]) :]
        sizes = [*outputs[0][:-1], inputs[1][-2]][-len(inputs[3]) :]
        mask = [
            name if have == want else f"one_{name}" for name, have, want in zip(wanted, inputs[3], sizes, strict=True)
        ]
        fixed |= {name for name in mask if name.startswith("one_")}
        sides.append(_single(*mask))
    outs = (_single(*lead, "heads", "s", "e"),)
    return Signature(tuple(sides), outs, frozenset(), frozenset(fixed), placed=frozenset({"s"} & fixed))


def attention(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    """Attention on [b, s, (heads d)] with ``heads`` and ``kv_heads`` in the attributes."""
    heads, kv_heads = op.attributes["heads"], op.attributes["kv_heads"]
    query, key = (Dim(("b",)), Dim(("s",)), Dim(("heads", "d"))), (Dim(("b",)), Dim(("t",)), Dim(("heads", "e")))
    sides: list[tuple[Dim, ...]] = [query, key, key]
    fixed = {"t", "d", "e"} | ({"s"} if op.attributes.get("causal") else set())
    if len(inputs) > 3:
        alone = inputs[3][0] != inputs[0][0]
        sides.append(_single("one" if alone else "b", "heads", "s", "t"))
        fixed |= {"one"} if alone else set()
    sizes = {"heads": gcd(heads, kv_heads)}
    return Signature(tuple(sides), (query,), frozenset(), frozenset(fixed), sizes, frozenset({"s"} & fixed))


def rotary(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    lead = _labels(len(inputs[0]) - 1)
    side = (*_single(*lead), Dim(("heads", "d")))
    sizes = {"heads": inputs[0][-1] // op.attributes["head_dim"]}
    return Signature((side,), (side,), frozenset(), frozenset({*lead[1:], "d"}), sizes, frozenset(lead[1:]))


def embedding(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    lead = _labels(len(inputs[1]) if len(inputs) > 1 else len(outputs[0]) - 1)
    sides = [_single("vocabulary", "h"), _single(*lead)]
    # Gradients scaled by how often a row occurs need all the ids of the batch's rows in one place.
    fixed = {"vocabulary"} if argument(op, 3, "scale_grad_by_freq", False) else set()
    return Signature(tuple(sides[: len(inputs)]), (_single(*lead, "h"),), frozenset({"vocabulary"}), frozenset(fixed))


def cross_entropy(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    """The classes may be cut: the op exchanges maxima and sums itself, so that its result is never partial.

    Not with class weights, label smoothing or a loss for each token: those the exchange doesn't know.
    """
    lead = _labels(len(inputs[0]) - 1)
    outs = _labels(len(outputs[0]), "o")
    plain = len(inputs) == 2 and not argument(op, 5, "label_smoothing") and not outs
    sides = [_single(*lead, "vocabulary"), _single(*lead), _single("weights")][: len(inputs)]
    fixed = frozenset({*outs, *lead, "weights", *(() if plain else ("vocabulary",))})
    placed = frozenset(lead if not outs else ())
    return Signature(tuple(sides), (_single(*outs),), frozenset({"vocabulary"}), fixed, placed=placed)


def split(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    rank = len(inputs[0])
    names = _labels(rank)
    (dim,) = _dims(argument(op, 2, "dim", 0), rank)
    # Outputs that nobody reads are left out of the op: then the parts can't be told from those that are there.
    equal = len({shape[dim] for shape in outputs}) == 1 and sum(shape[dim] for shape in outputs) == inputs[0][dim]
    source = [Dim((name,), len(outputs) if position == dim and equal else 1) for position, name in enumerate(names)]
    if equal:
        return Signature((tuple(source),), tuple(_single(*names) for _ in outputs))
    fixed, sides = {names[dim]}, []
    for index in range(len(outputs)):
        piece = [name if position != dim else f"part{index}" for position, name in enumerate(names)]
        fixed.add(f"part{index}")
        sides.append(_single(*piece))
    return Signature((tuple(source),), tuple(sides), frozenset(), frozenset(fixed))


def cat(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    rank = len(outputs[0])
    names = _labels(rank)
    (dim,) = _dims(argument(op, 1, "dim", 0), rank)
    fixed, sides = {names[dim]}, []
    for index in range(len(inputs)):
        fixed.add(f"part{index}")
        sides.append(_single(*(name if position != dim else f"part{index}" for position, name in enumerate(names))))
    return Signature(tuple(sides), (_single(*names),), frozenset(), frozenset(fixed))


def view(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    return view_signature(inputs[0], outputs[0])


def permute(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    names = _labels(len(inputs[0]))
    # Without dims (``x.T``) all of them are turned round.
    order = [int(dim) % len(names) for dim in argument(op, 1, "dims", range(len(names))[::-1])]
    return Signature((_single(*names),), (_single(*(names[dim] for dim in order)),))


def transpose(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    names = _labels(len(inputs[0]))
    # Without dims (``x.t()``) a matrix is meant.
    dims = argument(op, 1, "dim0", 0), argument(op, 2, "dim1", -1)
    first, second = (int(dim) % len(names) for dim in dims)
    swapped = list(names)
    swapped[first], swapped[second] = names[second], names[first]
    return Signature((_single(*names),), (_single(*swapped),))


def reduction(partial: bool) -> Rule:
    """Rule of a reduction: cut reduced dims give partial sums for ``sum`` and may not be cut for ``mean``."""

    def rule(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
        names = _labels(len(inputs[0]))
        gone = _dims(argument(op, 1, "dim"), len(names))
        keep = len(outputs[0]) == len(names)
        result, fixed = [], set()
        for position, name in enumerate(names):
            if position not in gone:
                result.append(name)
            elif keep:
                result.append(f"one{position}")
                fixed.add(f"one{position}")
        lost = {names[dim] for dim in gone}
        whole = fixed if partial else fixed | lost
        return Signature((_single(*names),), (_single(*result),), frozenset(lost if partial else ()), frozenset(whole))

    return rule


def select(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    names = _labels(len(inputs[0]))
    (dim,) = _dims(argument(op, 1, "dim", 0), len(names))
    rest = [name for position, name in enumerate(names) if position != dim]
    return Signature((_single(*names),), (_single(*rest),), frozenset(), frozenset({names[dim]}))


def conv2d(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    found = parse("b c+ y^ x^, n c+ p^ q^, n -> b n u^ v^")
    return Signature(found.inputs[: len(inputs)], found.outputs, found.reduced, found.fixed)


def _sliced(op: Op, rank: int) -> set[int]:
    return _dims(argument(op, 1, "dim", 0), rank)


def _padded(op: Op, rank: int) -> set[int]:
    pads = argument(op, 1, "pad", ())
    return {rank - 1 - index // 2 for index, pad in enumerate(pads) if pad}


def _expanded(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature:
    return pointwise(op, inputs, outputs)


def _rows(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature | None:
    """Rows of a table picked by an integer tensor: the table's further dims may be cut."""
    if len(inputs) > 2:
        return None
    tail = _labels(len(inputs[0]) - 1, "h")
    picked = len(outputs[0]) - len(tail)
    lead = _labels(picked)
    sides = [_single("rows", *tail), _single(*lead)]
    return Signature(tuple(sides[: len(inputs)]), (_single(*lead, *tail),), frozenset(), frozenset({"rows", *lead}))


def topk(op: Op, inputs: list[Shape], outputs: list[Shape]) -> Signature | None:
    """The largest along a dim, which stays whole, and where they stand."""
    one = _keeping(lambda op, rank: _dims(argument(op, 2, "dim", -1), rank))(op, inputs, outputs)
    return one and Signature(one.inputs, one.outputs * len(outputs), one.reduced, one.fixed)


_POINTWISE = """
    add sub mul div neg pow sqrt rsqrt exp log abs tanh gelu gelu_new relu silu sigmoid erf scale clamp minimum maximum
    to contiguous clone alias dropout native_dropout masked_fill where
    eq ne lt le gt ge __and__ __or__ bitwise_and bitwise_or bitwise_not logical_not
""".split()

RULES: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE, pointwise),
    "linear": linear,
    "addmm": addmm,
    "matmul": matmul,
    "bmm": matmul,
    "scaled_dot_product_attention": attention4,
    "attention": attention,
    "rotary": rotary,
    "embedding": embedding,
    "cross_entropy": cross_entropy,
    "layer_norm": _keeping(_norm_dims),
    "rms_norm": _keeping(_norm_dims),
    "softmax": _keeping(lambda op, rank: _dims(argument(op, 1, "dim", -1), rank)),
    "split": split,
    "cat": cat,
    "view": view,
    "permute": permute,
    "transpose": transpose,
    "expand": _expanded,
    "sum": reduction(partial=True),
    "mean": reduction(partial=False),
    "select": select,
    "slice": _keeping(_sliced),
    "pad": _keeping(_padded),
    "roll": _keeping(lambda op, rank: _dims(argument(op, 2, "dims"), rank)),
    "adaptive_avg_pool1d": _keeping(lambda op, rank: {rank - 1}),
    "adaptive_avg_pool2d": _keeping(lambda op, rank: {rank - 2, rank - 1}),
    "conv2d": conv2d,
    "index": _rows,
    "cumsum": _keeping(lambda op, rank: _dims(argument(op, 1, "dim"), rank)),
    "topk": topk,
}
