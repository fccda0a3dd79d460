"""GPT-2: learned positions, fused query-key-value projection, weights stored [in, out]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from partita.errors import ModelError
from partita.graph import Graph, Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.losses import causal_head
from partita.plugins.capture_huggingface.settings import Activation, Layers, Probability, Size, TokenSettings, divide


class Gpt2Settings(TokenSettings):
    """Keys of a ``gpt2`` configuration that shape its graph, with the defaults of ``GPT2Config``."""

    also: ClassVar[Mapping[str, str]] = {
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }  # fmt: skip
    learned: ClassVar[str | None] = "n_positions"

    vocab_size: Size = 50257
    n_positions: Size = 1024
    n_embd: Size = 768
    n_layer: Layers = 12
    n_head: Size = 12
    n_inner: Size | None = None
    activation_function: Activation = "gelu_new"
    resid_pdrop: Probability = 0.1
    embd_pdrop: Probability = 0.1
    attn_pdrop: Probability = 0.1
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True

    @property
    def longest(self) -> int:
        return self.n_positions


def build(c: Gpt2Settings, b: Builder) -> Graph:
    """``GPT2LMHeadModel`` with labels."""
    divide("n_embd", c.n_embd, "n_head", c.n_head)
    if c.add_cross_attention:
        raise ModelError("add_cross_attention=true needs an encoder, which a gpt2 configuration doesn't describe")
    ids, labels = b.input("input_ids", (b.samples, b.seq)), b.input("labels", (b.samples, b.seq))
    b.block("embedding")
    x = nn.embedding(b, ids, "transformer.wte", c.vocab_size, c.n_embd)
    places = nn.embedding(b, b.buffer("position_ids", (1, b.seq)), "transformer.wpe", c.n_positions, c.n_embd)
    x = nn.dropout(b, nn.add(b, x, places, "transformer"), "transformer.drop", c.embd_pdrop)
    for index in range(c.n_layer):
        x = _layer(c, b, x, f"transformer.h.{index}")
    b.block("head")
    x = nn.layer_norm(b, x, "transformer.ln_f")
    return causal_head(b, x, labels, "transformer.wte", c.vocab_size, c.tie_word_embeddings)


def _layer(c: Gpt2Settings, b: Builder, x: Tensor, path: str) -> Tensor:
    b.block(path)
    attn, mlp, h = f"{path}.attn", f"{path}.mlp", c.n_embd
    y = nn.layer_norm(b, x, f"{path}.ln_1")
    y = nn.linear(b, y, f"{attn}.c_attn", 3 * h, transposed=True)
    q, k, v = b.op_with_outputs("split", [y], [x.shape] * 3, attn, dim=-1, sizes=[h] * 3)
    y = nn.attention(b, q, k, v, attn, heads=c.n_head, causal=True, p=c.attn_pdrop)
    y = nn.linear(b, y, f"{attn}.c_proj", h, transposed=True)
    x = nn.add(b, nn.dropout(b, y, f"{attn}.resid_dropout", c.resid_pdrop), x, path)
    y = nn.layer_norm(b, x, f"{path}.ln_2")
    y = nn.linear(b, y, f"{mlp}.c_fc", c.n_inner or 4 * h, transposed=True)
    y = nn.activation(b, y, f"{mlp}.act", c.activation_function)
    y = nn.linear(b, y, f"{mlp}.c_proj", h, transposed=True)
    return nn.add(b, x, nn.dropout(b, y, f"{mlp}.dropout", c.resid_pdrop), path)
