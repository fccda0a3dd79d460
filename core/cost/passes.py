"""What an op of a captured graph moves in eager PyTorch, as a multiple of its inputs and outputs, in each pass.

A configuration's graph has one op where modules call several: a root mean square norm is raised to float32, squared,
averaged, scaled, lowered and multiplied by its weight, each a kernel of its own; rotary positions are two products, a
turned copy and a sum. Read off the modules of transformers and the kernels of torch.autograd. Used with measured rates,
which are those of single kernels.
"""

from __future__ import annotations

# (forward, backward) multiples of the bytes of inputs and outputs. Kinds that aren't named: once, and once again.
MULTIPLES = {
    "layer_norm": (1.0, 1.5), "native_layer_norm": (1.0, 1.5),  # backward reads x and the gradient, writes one
    "rms_norm": (9.0, 17.0),
    "rotary": (5.0, 6.0),
    # 0.5·x·(1 + tanh(c·(x + 0.044715·x³))): eight kernels; backward x² and 3·x² anew, three gradients of x added.
    "gelu_new": (9.0, 14.0),
    "gelu": (1.0, 1.5), "silu": (1.0, 1.5), "relu": (1.0, 1.5), "tanh": (1.0, 1.5), "sigmoid": (1.0, 1.5),
    "softmax": (1.0, 1.5), "_softmax": (1.0, 1.5),
    "mul": (1.0, 2.0), "div": (1.0, 2.0), "matmul": (1.0, 2.0),  # a gradient of each factor
    "dropout": (1.25, 1.25), "native_dropout": (1.25, 1.25),  # with a mask of one byte
    # The log-softmax is written forward; backward fills its gradient, reads both and writes that of the logits.
    "cross_entropy": (2.0, 4.0),
}  # fmt: skip
NORMS = frozenset({"layer_norm", "native_layer_norm"})
SOFTMAX = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "cross_entropy"})


def multiples(kind: str) -> tuple[float, float]:
    """Forward and backward multiples of a kind."""
    return MULTIPLES.get(kind, (1.0, 1.0))
