"""Ops that every stage computes for itself: those that depend on no parameter and draw no random number."""

from __future__ import annotations

from partita.graph.model import Graph

# Ops that draw random numbers: never computed twice for the same micro-batch on two stages.
RANDOM = frozenset(
    """
    dropout native_dropout alpha_dropout feature_dropout feature_alpha_dropout rrelu rrelu_with_noise
    rrelu_with_noise_functional rand randn randint randperm rand_like randn_like randint_like bernoulli binomial cauchy
    exponential geometric log_normal multinomial normal normal_functional poisson random uniform
    _sample_dirichlet _standard_gamma gru lstm rnn_relu rnn_tanh
    """.split()
)


def constant_ops(graph: Graph) -> set[str]:
    """Names of the ops that depend on no parameter and on no random number: masks, positions, shifted labels."""
    known = {tensor.name for tensor in graph.tensors if tensor.role in ("input", "buffer")}
    found = set()
    for op in graph.ops:
        if op.kind not in RANDOM and all(name in known for name in op.inputs):
            known.update(op.outputs)
            found.add(op.name)
    return found
