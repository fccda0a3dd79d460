"""Which dims of a block tensor parallelism may cut, found from the signatures of its ops.

A dim of one tensor follows the dims of others: cutting the output of a query projection cuts the heads of the
attention, the keys and values, and the reduced dim of the output projection. Such dims form a *class*. A class may
be cut when none of its dims is one that some op needs whole, none reaches another block, and it holds a dim of a
parameter. What follows is Megatron's column-then-row pattern for every model, without naming any of its layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd

from partita.errors import PlanError, divisors, listed
from partita.graph.model import Graph, Op
from partita.graph.signature import Signature
from partita.graph.table import signature

Node = tuple[str, int]

# Ops whose output is a sum over a cut dim (an all-reduce completes it). Cross entropy completes its own.
SUMS = frozenset({"linear", "addmm", "matmul", "bmm", "embedding", "sum", "conv2d"})
# Ops that work on a padded vocabulary: padding rows are never looked up, padding columns are masked in the loss.
PADDABLE = frozenset({"embedding", "linear", "addmm", "cross_entropy", "to", "view", "alias"})


@dataclass(frozen=True)
class CutClass:
    """Dims of a block that are cut together. ``dims``: tensor to (dim, equal parts that it consists of).

    A number of pieces must divide ``size``, the greatest common divisor of ``limits`` (what, size), unless ``pads``:
    then the dim is padded up to the next multiple. ``reductions`` are values that come out as partial sums and are
    all-reduced in the forward pass; ``entries`` are whole tensors read by cut ops: their gradients are all-reduced.
    """

    name: str
    dims: Mapping[str, tuple[int, int]]
    size: int
    pads: bool
    limits: tuple[tuple[str, int], ...]
    reductions: tuple[str, ...]
    entries: tuple[str, ...]
    ops: frozenset[str]

    def require(self, pieces: int, block: str, axes: Iterable[str] = ("tensor",)) -> None:
        """PlanError that names the numbers, when the class can't be cut into that many pieces along the axes."""
        if self.pads or self.size % pieces == 0:
            return
        what, size = next((w, s) for w, s in self.limits if s % pieces)
        # What divides every limit, not only the one that is quoted: 3 divides 6 query heads and not 2 of keys.
        works = divisors(self.size)
        axis = "·".join("tp" if name == "tensor" else name for name in axes)
        near = dict.fromkeys([max(d for d in works if d < pieces), *[d for d in works if d > pieces][:1]])
        raise PlanError(
            f'{axis}={pieces} does not divide {what}={size} (block "{block}"); {listed(works)} do. '
            f"The remainder is {size % pieces}; nearest: {listed(near)}."
        )


def block_cuts(graph: Graph, block: str, *, gathered: bool = False) -> tuple[CutClass, ...]:
    """The classes of the block that are cut together under tensor parallelism, in order of their first op.

    ``gathered``: what the model returns is made whole after the block, so that the words of logits that no loss of the
    model reads may be cut too.
    """
    ops = graph.block_ops[block]
    signatures = {op.name: found for op in ops if (found := signature(graph, op)) is not None}
    links, blocked = _links(graph, ops, signatures)
    outside = _outside(graph, block, ops)
    chosen: list[CutClass] = []
    seen: set[Node] = set()
    busy: set[str] = set()
    for op in ops:
        for name in (*op.outputs, *op.inputs):
            for dim in range(len(graph.tensor[name].shape)):
                if (name, dim) in seen:
                    continue
                members = _follow((name, dim), links)
                seen.update(members or ())
                if not members or any(node in blocked or node[0] in outside for node in members):
                    continue
                cut = _class(graph, ops, signatures, members, gathered)
                if cut and not cut.ops & busy:
                    chosen.append(cut)
                    busy |= cut.ops
    return tuple(chosen)


def core_ops(graph: Graph, cut: CutClass, block: str) -> frozenset[str]:
    """The ops of a class between those that read its trained parameters, these included.

    Where the same axis cuts what flows through the block, the others can work on that: experts then get their tokens by
    an exchange (all-to-all) instead of all tokens.
    """
    ops = [op for op in graph.block_ops[block] if op.name in cut.ops]
    trained = {name for name in cut.dims if graph.tensor[name].role == "parameter" and graph.tensor[name].gradient}
    after: set[str] = set()
    values: set[str] = set()
    for op in ops:
        if trained.intersection(op.inputs) or values.intersection(op.inputs):
            after.add(op.name)
            values.update(op.outputs)
    before: set[str] = set()
    wanted: set[str] = set()
    for op in reversed(ops):
        if trained.intersection(op.inputs) or wanted.intersection(op.outputs):
            before.add(op.name)
            wanted.update(op.inputs)
    return frozenset(after & before)


def unknown_kinds(graph: Graph, block: str) -> dict[str, str]:
    """Ops of the block that carry a gradient and have no signature, by name with their kind: they stay whole."""
    return {
        op.name: op.kind
        for op in graph.block_ops[block]
        if any(graph.tensor[name].gradient for name in op.outputs) and signature(graph, op) is None
    }


def _links(
    graph: Graph, ops: tuple[Op, ...], signatures: Mapping[str, Signature]
) -> tuple[dict[Node, list[tuple[Node, int, int]]], set[Node]]:
    """Neighbours of each node, (node, its parts, my parts), and the nodes that some op needs whole."""
    links: dict[Node, list[tuple[Node, int, int]]] = defaultdict(list)
    blocked: set[Node] = set()
    for op in ops:
        found = signatures.get(op.name)
        names = (*op.inputs, *op.outputs)
        if found is None:
            blocked.update((name, dim) for name in names for dim in range(len(graph.tensor[name].shape)))
            continue
        at: dict[str, list[tuple[Node, int]]] = defaultdict(list)
        for name, dims in zip(names, (*found.inputs, *found.outputs), strict=True):
            for position, dim in enumerate(dims):
                at[dim.factors[0]].append(((name, position), dim.parts))
        for label, nodes in at.items():
            partial_ok = label not in found.reduced or _sums(op) or op.kind == "cross_entropy"
            if not found.cuttable(label) or not partial_ok or _positional(graph, op, label):
                blocked.update(node for node, _ in nodes)
                continue
            first, parts = nodes[0]
            for node, other in nodes[1:]:
                links[first].append((node, other, parts))
                links[node].append((first, parts, other))
            links.setdefault(first, [])
    return links, blocked


def _sums(op: Op) -> bool:
    """Whether an all-reduce completes the op: a convolution would have its bias in every piece."""
    return op.kind in SUMS and not (op.kind == "conv2d" and len(op.inputs) > 2)


def _positional(graph: Graph, op: Op, label: str) -> bool:
    """Whether the label is the table dim of an embedding that isn't looked up by the batch (positions, types).

    Such tables are small: sharding them would cost an all-reduce and save nothing.
    """
    if op.kind != "embedding" or label != "vocabulary":
        return False
    if len(op.inputs) < 2:
        return True
    pending, met = [op.inputs[1]], set()
    while pending:
        name = pending.pop()
        if graph.tensor[name].role == "input":
            return False
        if name in graph.producer and name not in met:
            met.add(name)
            pending.extend(graph.producer[name].inputs)
    return True


def _outside(graph: Graph, block: str, ops: tuple[Op, ...]) -> set[str]:
    """Values that stay whole: those that cross the block's border, so that neighbours may choose as they like, and
    those made from no parameter (masks, biases by distance), which every device makes for itself.
    """
    made = {name for op in ops for name in op.outputs}
    read = {name for op in ops for name in op.inputs if graph.tensor[name].role != "parameter"}
    elsewhere = {name for name in made if any(reader != block for reader in graph.readers.get(name, ()))}
    return (read - made) | elsewhere | (made - graph.reached)


def _follow(start: Node, links: Mapping[Node, list[tuple[Node, int, int]]]) -> dict[Node, int] | None:
    """All nodes linked to the start with the number of parts of each, or None where parts contradict each other."""
    if start not in links:
        return None
    # Parts are kept as a ratio to the start's and scaled up at the end: a split's input has 3, its outputs 1.
    ratio = {start: (1, 1)}
    pending = [start]
    agree = True
    while pending:
        node = pending.pop()
        top, bottom = ratio[node]
        for other, other_parts, my_parts in links[node]:
            value = (top * other_parts, bottom * my_parts)
            if other not in ratio:
                ratio[other] = value
                pending.append(other)
            elif ratio[other][0] * value[1] != ratio[other][1] * value[0]:
                agree = False
    least = min(top / bottom for top, bottom in ratio.values())
    parts = {node: round(top / bottom / least) for node, (top, bottom) in ratio.items()}
    return parts if agree else dict.fromkeys(parts, 0)


def _class(
    graph: Graph, ops: tuple[Op, ...], signatures: Mapping[str, Signature], members: Mapping[Node, int], gathered: bool
) -> CutClass | None:
    """The class of these nodes, or None when cutting it would be of no use or would cut a tensor twice."""
    dims: dict[str, tuple[int, int]] = {}
    for (name, dim), parts in members.items():
        if parts == 0 or name in dims:
            return None
        dims[name] = (dim, parts)
    if not any(graph.tensor[name].role == "parameter" for name in dims):
        return None
    limits: dict[str, int] = {}
    width = 0
    reductions: list[str] = []
    entries: list[str] = []
    cut_ops: set[str] = set()
    kinds: set[str] = set()
    label_names: set[str] = set()
    for op in ops:
        if op.name not in signatures or not any(name in dims for name in (*op.inputs, *op.outputs)):
            continue
        found = signatures[op.name]
        cut_ops.add(op.name)
        kinds.add(op.kind)
        labels = _cut_labels(op, found, dims)
        label_names |= labels
        for label in labels:
            width = gcd(width, found.sizes[label])
            limits.update(_named_limits(graph, op, label, found.sizes[label]))
        if labels & found.reduced:
            reductions.extend(op.outputs if op.kind in SUMS else ())
            continue
        entries.extend(
            name for name in op.inputs if name not in dims and graph.tensor[name].gradient and name not in entries
        )
    returned = gathered and not reductions and not dims.keys().isdisjoint(graph.outputs)
    if not reductions and "cross_entropy" not in kinds and not returned:
        return None
    size = width
    for limit in limits.values():
        size = gcd(size, limit)
    name = next((word for word in ("heads", "vocabulary") if word in label_names), "hidden")
    if returned and name == "hidden":
        name = "vocabulary"
    if name == "hidden" and any(_of_experts(graph, op, dims) for op in ops):
        name = "experts"
    if limits and size not in limits.values():
        # What limits the cut further than query heads: the fewer heads of keys and values, seen through their views.
        limits["kv_heads"] = size
    if not limits:
        limits["width"] = size
    pads = name == "vocabulary" and kinds <= PADDABLE and all(parts == 1 for _, parts in dims.values())
    return CutClass(
        name, dims, size, pads, tuple(limits.items()), tuple(reductions), tuple(entries), frozenset(cut_ops)
    )


def _of_experts(graph: Graph, op: Op, dims: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the op multiplies by a parameter of which there is one matrix for each index of the cut dim."""
    if op.kind not in ("bmm", "matmul") or len(op.inputs) < 2 or op.inputs[1] not in dims:
        return False
    weight = graph.tensor[op.inputs[1]]
    return weight.role == "parameter" and dims[weight.name][0] < len(weight.shape) - 2


def _cut_labels(op: Op, found: Signature, dims: Mapping[str, tuple[int, int]]) -> set[str]:
    labels = set()
    for name, shape in zip((*op.inputs, *op.outputs), (*found.inputs, *found.outputs), strict=True):
        if name in dims:
            labels.add(shape[dims[name][0]].factors[0])
    return labels


def _named_limits(graph: Graph, op: Op, label: str, size: int) -> dict[str, int]:
    """The limit under the name that people know it by; widths that follow from it have none."""
    if op.kind == "attention" and label == "heads":
        found = {"heads": op.attributes["heads"], "kv_heads": op.attributes["kv_heads"]}
        return found if found["heads"] != found["kv_heads"] else {"heads": found["heads"]}
    if op.kind == "scaled_dot_product_attention" and label == "heads":
        return {"heads": graph.tensor[op.inputs[0]].shape[-3]}
    return {label: size} if label in ("heads", "vocabulary") else {}
