"""Kinds of ops by what they cost: those that move nothing, those that multiply matrices, attention.

A kind that stands in none of these sets moves its inputs and outputs through memory once.
"""

from __future__ import annotations

from partita.graph.attention import ATTENTION as ATTENTION

# The output is another view of the input's memory (or of a part of it).
VIEWS = frozenset({
    "alias", "detach", "expand", "getitem", "permute", "reshape", "select", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unsqueeze", "unflatten", "flatten", "view", "chunk",
})  # fmt: skip
# An element takes as long as many additions do.
TRANSCENDENTAL = frozenset({
    "cos", "cross_entropy", "erf", "exp", "gelu", "gelu_new", "log", "log_softmax", "pow", "sigmoid", "silu", "sin",
    "softmax", "_log_softmax", "_softmax", "tanh",
})  # fmt: skip
MATMULS = frozenset({"linear", "addmm", "baddbmm", "matmul", "mm", "bmm", "conv2d"})
# Only the rows that are looked up are read.
LOOKUPS = frozenset({"embedding", "index", "gather", "index_select"})
