"""The sizes of GPT-3 (Brown et al., 2020, "Language Models are Few-Shot Learners", table 2.1) as gpt2 configurations.

Attention is dense in all layers; the paper alternates dense and locally banded sparse ones. It states no dropout, so
there is none. GELU is the tanh approximation by torch's one kernel: GPT-2's "gelu_new" is the same function in eight,
which keep nearly twice as many bytes of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partita.errors import ModelError, nearest


@dataclass(frozen=True)
class Size:
    """Layers, width of the residual stream, attention heads; ``batch_tokens`` is the paper's batch, in tokens."""

    layers: int
    width: int
    heads: int
    batch_tokens: int
    vocabulary: int = 50257
    context: int = 2048


SIZES = {
    # Bytes and one end-of-text token: 257 is odd on purpose, no tp but 1 divides it.
    "gpt3-tiny": Size(4, 128, 4, 2048, vocabulary=257, context=128),
    "gpt3-125m": Size(12, 768, 12, 500_000),
    "gpt3-350m": Size(24, 1024, 16, 500_000),
    "gpt3-760m": Size(24, 1536, 16, 500_000),
    # The paper prints 24 heads of 128, which is 3072 and not its width of 2048; 16 heads of 128 are.
    "gpt3-1.3b": Size(24, 2048, 16, 1_000_000),
    # 32 heads of 80: the one size whose heads are no multiple of 32 wide.
    "gpt3-2.7b": Size(32, 2560, 32, 1_000_000),
    "gpt3-6.7b": Size(32, 4096, 32, 2_000_000),
    # The paper prints a width of 5140, which its 40 heads of 128 are not; 5120 is.
    "gpt3-13b": Size(40, 5120, 40, 2_000_000),
    "gpt3-175b": Size(96, 12288, 96, 3_200_000),
}


def config(name: str) -> dict[str, Any]:
    """What ``config.json`` would hold for one of the sizes; ModelError with the nearest names for any other."""
    if name not in SIZES:
        raise ModelError(f'there is no size "{name}" of GPT-3.{nearest(name, SIZES)}')
    size = SIZES[name]
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": size.vocabulary,
        "n_positions": size.context,
        "n_embd": size.width,
        "n_layer": size.layers,
        "n_head": size.heads,
        "activation_function": "gelu_pytorch_tanh",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
