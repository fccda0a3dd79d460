"""Attention that isn't fused: four kernels, each of which leaves its result in memory.

A graph says that there is attention, not how it is computed. Partita's own runs take torch's fused kernel, which never
writes the scores. Published runs from before there was one (Megatron's of 2022, SuperScaler's) computed scores,
softmax, dropout and the weighted sum one after another; ``Division.attention`` says which of the two is meant.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.graph.model import Graph, Op
from partita.graph.table import argument


@dataclass(frozen=True)
class Scores:
    """Of one op, whole: elements of scores (one a query, key and head), and whether dropout is applied to them."""

    elements: float
    dropout: bool

    def kept_bytes(self, item: int) -> float:
        """For the backward pass: softmax's result; with dropout also its result and its mask (Korthikanti et al.,
        2022, section 4.1: 5as²b in half precision)."""
        return self.elements * (2 * item + 1 if self.dropout else item)

    def kernels(self, item: int) -> list[tuple[float, float]]:
        """(part of the op's FLOPs, bytes of scores that are read and written) of each kernel."""
        softmax = (0.0, 2.0 * item * self.elements)
        dropout = [(0.0, (2.0 * item + 1) * self.elements)] if self.dropout else []
        product = (0.5, float(item) * self.elements)
        return [product, softmax, *dropout, product]


def scores(graph: Graph, op: Op) -> Scores:
    """The scores of an attention op: queries are [b, s, (heads d)] or [b, heads, s, d], keys have t last but one."""
    query, keys = graph.tensor[op.inputs[0]], graph.tensor[op.inputs[1]].shape[-2]
    if op.kind == "attention":
        width = query.shape[-1] // op.attributes["heads"]
        return Scores(query.elements / width * keys, bool(op.attributes.get("dropout", 0.0)))
    return Scores(query.elements / query.shape[-1] * keys, bool(argument(op, 4, "dropout_p", 0.0)))
