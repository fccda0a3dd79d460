"""Floating-point operations of the forward pass: 2·m·n·k of every matrix product; pointwise work isn't counted."""

from __future__ import annotations

from math import prod

from partita.cost.kinds import ATTENTION
from partita.graph.model import Graph, Op
from partita.graph.table import argument


def op_flops(graph: Graph, op: Op) -> float:
    """FLOPs of one op for the graph's samples. Attention counts 4·b·h·s·t·d in full, whatever its mask leaves out."""
    if op.kind in ("linear", "matmul", "mm", "bmm"):
        return 2.0 * graph.tensor[op.outputs[0]].elements * graph.tensor[op.inputs[0]].shape[-1]
    if op.kind in ("addmm", "baddbmm"):
        return 2.0 * graph.tensor[op.outputs[0]].elements * graph.tensor[op.inputs[1]].shape[-1]
    if op.kind == "conv2d":
        return 2.0 * graph.tensor[op.outputs[0]].elements * prod(graph.tensor[op.inputs[1]].shape[1:])
    if op.kind in ATTENTION:
        # Queries are [b, s, h·d] or [b, h, s, d], keys have t as their last dim but one in both.
        return 4.0 * graph.tensor[op.inputs[0]].elements * graph.tensor[op.inputs[1]].shape[-2]
    return 0.0


def executed_fraction(op: Op) -> float:
    """The part of the FLOPs that kernels carry out: causal attention skips the masked half."""
    return 0.5 if op.kind in ATTENTION and is_causal(op) else 1.0


def is_causal(attention: Op) -> bool:
    """Whether an attention op, in either of its forms, says that it is causal."""
    if attention.kind == "attention":
        return attention.attributes.get("causal") is True
    return argument(attention, 5, "is_causal", False) is True


def block_flops(graph: Graph, block: str) -> float:
    """Forward FLOPs of a block for the graph's samples."""
    return sum(op_flops(graph, op) for op in graph.block_ops[block])
