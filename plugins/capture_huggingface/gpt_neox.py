"""GPT-NeoX: rotary positions on part of each head, attention and MLP in parallel, projections fused head by head."""

from __future__ import annotations

from typing import Any

from partita.errors import ModelError
from partita.graph import Graph, Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.losses import causal_head
from partita.plugins.capture_huggingface.settings import Activation, Layers, Probability, Size, TokenSettings, divide


class GptNeoxSettings(TokenSettings):
    """Keys of a ``gpt_neox`` configuration that shape its graph, with the defaults of ``GPTNeoXConfig``."""

    vocab_size: Size = 50432
    hidden_size: Size = 6144
    num_hidden_layers: Layers = 44
    num_attention_heads: Size = 64
    intermediate_size: Size = 24576
    hidden_act: Activation = "gelu"
    attention_dropout: Probability = 0.0
    hidden_dropout: Probability = 0.0
    max_position_embeddings: Size = 2048
    tie_word_embeddings: bool = False
    use_parallel_residual: bool = True
    rotary_pct: Probability = 0.25
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = True

    @property
    def longest(self) -> int:
        return self.max_position_embeddings

    def rotary_dim(self, head_dim: int) -> int:
        """How many of a head's dims are rotated: an odd number is rounded up, as pairs are rotated."""
        part = (self.rope_parameters or {}).get("partial_rotary_factor", self.rotary_pct)
        if not isinstance(part, float | int) or not 0 <= part <= 1:
            raise ModelError(f"rope_parameters.partial_rotary_factor={part!r}: a number from 0 to 1 is needed")
        rotated = (int(head_dim * part) + 1) // 2 * 2
        if rotated > head_dim:
            raise ModelError(
                f"rotary_pct={part}: heads of {head_dim} dims (hidden_size={self.hidden_size} / "
                f"num_attention_heads={self.num_attention_heads}) are odd and can't be rotated as a whole; "
                f"rotary_pct below 1 or an even number of dims works"
            )
        return rotated


def build(c: GptNeoxSettings, b: Builder) -> Graph:
    """``GPTNeoXForCausalLM`` with labels."""
    head_dim = divide("hidden_size", c.hidden_size, "num_attention_heads", c.num_attention_heads)
    rotated = c.rotary_dim(head_dim)
    ids, labels = b.input("input_ids", (b.samples, b.seq)), b.input("labels", (b.samples, b.seq))
    b.block("embedding")
    x = nn.embedding(b, ids, "gpt_neox.embed_in", c.vocab_size, c.hidden_size)
    x = nn.dropout(b, x, "gpt_neox.emb_dropout", c.hidden_dropout)
    for index in range(c.num_hidden_layers):
        x = _layer(c, b, x, f"gpt_neox.layers.{index}", head_dim, rotated)
    b.block("head")
    x = nn.layer_norm(b, x, "gpt_neox.final_layer_norm")
    return causal_head(b, x, labels, "gpt_neox.embed_in", c.vocab_size, c.tie_word_embeddings)


def _layer(c: GptNeoxSettings, b: Builder, x: Tensor, path: str, head_dim: int, rotated: int) -> Tensor:
    b.block(path)
    attended = _attention(c, b, nn.layer_norm(b, x, f"{path}.input_layernorm"), f"{path}.attention", head_dim, rotated)
    attended = nn.dropout(b, attended, f"{path}.post_attention_dropout", c.hidden_dropout)
    if c.use_parallel_residual:
        y = _mlp(c, b, nn.layer_norm(b, x, f"{path}.post_attention_layernorm"), path)
        return nn.add(b, nn.add(b, y, attended, path), x, path)
    x = nn.add(b, attended, x, path)
    y = _mlp(c, b, nn.layer_norm(b, x, f"{path}.post_attention_layernorm"), path)
    return nn.add(b, y, x, path)


def _attention(c: GptNeoxSettings, b: Builder, x: Tensor, path: str, head_dim: int, rotated: int) -> Tensor:
    heads, shape = c.num_attention_heads, x.shape
    y = nn.linear(b, x, f"{path}.query_key_value", 3 * c.hidden_size, bias=c.attention_bias)
    # Query, key and value of one head lie side by side: heads are split off before the three are.
    y = nn.view(b, y, (*shape[:2], heads, 3 * head_dim), path)
    parts = [(*shape[:2], heads, head_dim)] * 3
    q, k, v = (
        nn.view(b, part, shape, path)
        for part in b.op_with_outputs("split", [y], parts, path, dim=-1, sizes=[head_dim] * 3)
    )
    if rotated:
        q, k = (b.op("rotary", [z], shape, path, head_dim=head_dim, rotary_dim=rotated) for z in (q, k))
    y = nn.attention(b, q, k, v, path, heads=heads, causal=True, p=c.attention_dropout)
    return nn.linear(b, y, f"{path}.dense", c.hidden_size, bias=c.attention_bias)


def _mlp(c: GptNeoxSettings, b: Builder, x: Tensor, path: str) -> Tensor:
    y = nn.linear(b, x, f"{path}.mlp.dense_h_to_4h", c.intermediate_size)
    y = nn.activation(b, y, f"{path}.mlp.act", c.hidden_act)
    y = nn.linear(b, y, f"{path}.mlp.dense_4h_to_h", c.hidden_size)
    return nn.dropout(b, y, f"{path}.post_mlp_dropout", c.hidden_dropout)
