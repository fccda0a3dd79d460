"""Llama: rotary positions, grouped-query attention, gated MLP, root mean square norms."""

from __future__ import annotations

from partita.errors import ModelError
from partita.graph import Graph, Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.losses import causal_head
from partita.plugins.capture_huggingface.settings import Activation, Layers, Probability, Size, TokenSettings, divide


class LlamaSettings(TokenSettings):
    """Keys of a ``llama`` configuration that shape its graph, with the defaults of ``LlamaConfig``."""

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Layers = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Size = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_dropout: Probability | None = 0.0
    mlp_bias: bool = False

    @property
    def longest(self) -> int:
        return self.max_position_embeddings


def build(c: LlamaSettings, b: Builder) -> Graph:
    """``LlamaForCausalLM`` with labels."""
    # transformers wants hidden_size to be a multiple of the heads even where head_dim is given.
    even = divide("hidden_size", c.hidden_size, "num_attention_heads", c.num_attention_heads)
    head_dim = c.head_dim or even
    if head_dim % 2:
        raise ModelError(f"head_dim={head_dim} is odd: rotary positions turn pairs; {head_dim + 1} works")
    kv_heads = c.num_key_value_heads or c.num_attention_heads
    divide("num_attention_heads", c.num_attention_heads, "num_key_value_heads", kv_heads)
    ids, labels = b.input("input_ids", (b.samples, b.seq)), b.input("labels", (b.samples, b.seq))
    b.block("embedding")
    x = nn.embedding(b, ids, "model.embed_tokens", c.vocab_size, c.hidden_size)
    for index in range(c.num_hidden_layers):
        x = _layer(c, b, x, f"model.layers.{index}", head_dim, kv_heads)
    b.block("head")
    x = nn.rms_norm(b, x, "model.norm")
    return causal_head(b, x, labels, "model.embed_tokens", c.vocab_size, c.tie_word_embeddings)


def _layer(c: LlamaSettings, b: Builder, x: Tensor, path: str, head_dim: int, kv_heads: int) -> Tensor:
    b.block(path)
    attn, mlp, bias = f"{path}.self_attn", f"{path}.mlp", c.attention_bias
    y = nn.rms_norm(b, x, f"{path}.input_layernorm")
    q = nn.linear(b, y, f"{attn}.q_proj", c.num_attention_heads * head_dim, bias=bias)
    k = nn.linear(b, y, f"{attn}.k_proj", kv_heads * head_dim, bias=bias)
    v = nn.linear(b, y, f"{attn}.v_proj", kv_heads * head_dim, bias=bias)
    q, k = (b.op("rotary", [z], z.shape, attn, head_dim=head_dim) for z in (q, k))
    y = nn.attention(
        b, q, k, v, attn, heads=c.num_attention_heads, kv_heads=kv_heads, causal=True, p=c.attention_dropout or 0.0
    )
    x = nn.add(b, x, nn.linear(b, y, f"{attn}.o_proj", c.hidden_size, bias=bias), path)
    y = nn.rms_norm(b, x, f"{path}.post_attention_layernorm")
    gate = nn.linear(b, y, f"{mlp}.gate_proj", c.intermediate_size, bias=c.mlp_bias)
    gate = nn.activation(b, gate, f"{mlp}.act_fn", c.hidden_act)
    up = nn.linear(b, y, f"{mlp}.up_proj", c.intermediate_size, bias=c.mlp_bias)
    y = b.op("mul", [gate, up], gate.shape, mlp)
    return nn.add(b, x, nn.linear(b, y, f"{mlp}.down_proj", c.hidden_size, bias=c.mlp_bias), path)
