"""Attention's inside in a block: what selective recomputation computes again (Korthikanti et al., 2022, section 5).

A graph has attention as one op, or written out: a product of two values (the scores), softmax of it, and a second
product that takes its result; between them whatever scales, masks, biases or drops scores. A softmax that no such
products surround (of a router, of an output) is none of attention's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from partita.graph.model import Graph, Op

ATTENTION = frozenset({"attention", "scaled_dot_product_attention"})
SOFTMAX = frozenset({"softmax", "_softmax"})
PRODUCTS = frozenset({"matmul", "bmm", "baddbmm"})


class Node(Protocol):
    """An op, of the model or of a piece."""

    @property
    def inputs(self) -> Sequence[str]: ...
    @property
    def outputs(self) -> Sequence[str]: ...


def insides(graph: Graph, block: str) -> tuple[frozenset[str], ...]:
    """The names of the ops of each attention of a block, in order of their first ops."""
    ops = graph.block_ops[block]
    found: list[frozenset[int]] = []
    for place, op in enumerate(ops):
        if op.kind in ATTENTION:
            found.append(frozenset({place}))
        elif op.kind in SOFTMAX:
            inside = _written_out(graph, ops, place)
            # Softmaxes between the same products are one attention's.
            found = [*(one for one in found if not one & inside), inside.union(*(one for one in found if one & inside))]
    return tuple(frozenset(ops[place].name for place in inside) for inside in sorted(found, key=sorted) if inside)


def between(ops: Sequence[Node], chosen: Iterable[int]) -> set[int]:
    """The places of these ops, and of all that depend on some of them while others of them depend on it."""
    makers = {name: place for place, op in enumerate(ops) for name in op.outputs}
    readers: dict[int, set[int]] = {}
    for place, op in enumerate(ops):
        for name in op.inputs:
            if name in makers:
                readers.setdefault(makers[name], set()).add(place)
    start = set(chosen)
    after = _reached(start, lambda place: readers.get(place, set()))
    before = _reached(start, lambda place: {makers[name] for name in ops[place].inputs if name in makers})
    return start | (after & before)


def _written_out(graph: Graph, ops: Sequence[Op], softmax: int) -> frozenset[int]:
    """The places of what lies between the products around a softmax, they among them; none without such."""
    makers = {name: place for place, op in enumerate(ops) for name in op.outputs}
    readers: dict[str, list[int]] = {}
    for place, op in enumerate(ops):
        for name in op.inputs:
            readers.setdefault(name, []).append(place)
    scores = _products(graph, ops, softmax, lambda op: [makers[name] for name in op.inputs if name in makers])
    sums = _products(graph, ops, softmax, lambda op: [p for name in op.outputs for p in readers.get(name, ())])
    if not scores or not sums:
        return frozenset()
    after = _reached(scores, lambda place: {p for name in ops[place].outputs for p in readers.get(name, ())})
    before = _reached(sums, lambda place: {makers[name] for name in ops[place].inputs if name in makers})
    return frozenset((after | scores) & (before | sums))


def _products(graph: Graph, ops: Sequence[Op], softmax: int, beside: Callable[[Op], Iterable[int]]) -> set[int]:
    """The nearest products of values on one side of a softmax, with nothing but ops without parameters between."""
    found, seen, left = set(), {softmax}, [softmax]
    while left:
        for place in beside(ops[left.pop()]):
            if place in seen or _has_parameters(graph, ops[place]):
                continue
            seen.add(place)
            if ops[place].kind in PRODUCTS:
                found.add(place)
            else:
                left.append(place)
    return found


def _has_parameters(graph: Graph, op: Op) -> bool:
    return any(graph.tensor[name].role == "parameter" for name in op.inputs)


def _reached(start: Iterable[int], beside: Callable[[int], Iterable[int]]) -> set[int]:
    """All that is reached from these places."""
    found: set[int] = set()
    left = list(start)
    while left:
        for place in beside(left.pop()):
            if place not in found:
                found.add(place)
                left.append(place)
    return found
