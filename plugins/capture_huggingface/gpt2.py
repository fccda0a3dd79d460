"""GPT-2: learned positions, fused query-key-value projection, weights stored [in, out]."""

from __future__ import annotations

from typing import ClassVar

from partita.errors import ModelError
from partita.graph import Graph, Tensor
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.layers import activation, add, attention, dropout, embedding, layer_norm, linear
from partita.plugins.capture_huggingface.losses import causal_loss
from partita.plugins.capture_huggingface.settings import Activation, Layers, Probability, Size, TokenSettings, divide


class Gpt2Settings(TokenSettings):
    """Keys of a ``gpt2`` configuration that shape its graph, with the defaults of ``GPT2Config``."""

    also = {
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
    x = embedding(b, ids, "transformer.wte", c.vocab_size, c.n_embd)
    places = embedding(b, b.buffer("position_ids", (1, b.seq)), "transformer.wpe", c.n_positions, c.n_embd)
    x = dropout(b, add(b, x, places, "transformer"), "transformer.drop", c.embd_pdrop)
    for index in range(c.n_layer):
        x = _layer(c, b, x, f"transformer.h.{index}")
    b.block("head")
    x = layer_norm(b, x, "transformer.ln_f")
    table = None
    if c.tie_word_embeddings:
        table = b.parameter("transformer.wte.weight", c.vocab_size, c.n_embd)
        b.tie("lm_head.weight", table.name)
    logits = linear(b, x, "lm_head", c.vocab_size, bias=False, weight=table)
    return causal_loss(b, logits, labels)


def _layer(c: Gpt2Settings, b: Builder, x: Tensor, path: str) -> Tensor:
    b.block(path)
    attn, mlp, h = f"{path}.attn", f"{path}.mlp", c.n_embd
    y = layer_norm(b, x, f"{path}.ln_1")
    y = linear(b, y, f"{attn}.c_attn", 3 * h, transposed=True)
    q, k, v = b.op_with_outputs("split", [y], [x.shape] * 3, attn, dim=-1, sizes=[h] * 3)
    y = attention(b, q, k, v, attn, heads=c.n_head, causal=True, p=c.attn_pdrop)
    y = linear(b, y, f"{attn}.c_proj", h, transposed=True)
    x = add(b, dropout(b, y, f"{attn}.resid_dropout", c.resid_pdrop), x, path)
    y = layer_norm(b, x, f"{path}.ln_2")
    y = linear(b, y, f"{mlp}.c_fc", c.n_inner or 4 * h, transposed=True)
    y = activation(b, y, f"{mlp}.act", c.activation_function)
    y = linear(b, y, f"{mlp}.c_proj", h, transposed=True)
    return add(b, x, dropout(b, y, f"{mlp}.dropout", c.resid_pdrop), path)
