"""ViT image classifier: patches and a class token through a transformer encoder."""

from __future__ import annotations

from pydantic import Field

from partita.graph import Graph, Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.losses import cross_entropy_loss
from partita.plugins.capture_huggingface.patches import patch_embedding, patch_grid
from partita.plugins.capture_huggingface.settings import (
    Activation,
    ImageSettings,
    Layers,
    Pair,
    Probability,
    Size,
    divide,
)


class VitSettings(ImageSettings):
    """Keys of a ``vit`` configuration that shape its graph, with the defaults of ``ViTConfig``."""

    hidden_size: Size = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Size = 12
    head_dim: Size | None = None
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    patch_size: Pair = Field(default=[16, 16])
    qkv_bias: bool = True


def build(c: VitSettings, b: Builder) -> Graph:
    """``ViTForImageClassification`` with labels."""
    head_dim = c.head_dim or divide("hidden_size", c.hidden_size, "num_attention_heads", c.num_attention_heads)
    classes = c.classes
    patch_grid(c.image_size, c.patch_size)
    pixels = b.input("pixel_values", (b.samples, c.num_channels, *c.image_size), b.dtype)
    labels = b.input("labels", (b.samples,))
    b.block("embedding")
    x = _embedding(c, b, pixels, "vit.embeddings")
    for index in range(c.num_hidden_layers):
        x = _layer(c, b, x, f"vit.layers.{index}", c.num_attention_heads * head_dim)
    b.block("head")
    x = nn.layer_norm(b, x, "vit.layernorm")
    x = b.op("select", [x], (b.samples, c.hidden_size), "", dim=1, index=0)
    return cross_entropy_loss(b, nn.linear(b, x, "classifier", classes), labels)


def _embedding(c: VitSettings, b: Builder, pixels: Tensor, path: str) -> Tensor:
    x = patch_embedding(b, pixels, f"{path}.patch_embeddings", c.hidden_size, c.patch_size)
    token = b.parameter(f"{path}.cls_token", 1, 1, c.hidden_size)
    token = b.op("expand", [token], (b.samples, 1, c.hidden_size), path)
    shape = (b.samples, x.shape[1] + 1, c.hidden_size)
    x = b.op("cat", [token, x], shape, path, dim=1)
    x = nn.add(b, x, b.parameter(f"{path}.position_embeddings", 1, *shape[1:]), path)
    return nn.dropout(b, x, f"{path}.dropout", c.hidden_dropout_prob)


def _layer(c: VitSettings, b: Builder, x: Tensor, path: str, width: int) -> Tensor:
    b.block(path)
    attn = f"{path}.attention"
    y = nn.layer_norm(b, x, f"{path}.layernorm_before")
    q, k, v = (nn.linear(b, y, f"{attn}.{part}_proj", width, bias=c.qkv_bias) for part in "qkv")
    y = nn.attention(b, q, k, v, attn, heads=c.num_attention_heads, p=c.attention_probs_dropout_prob)
    y = nn.linear(b, y, f"{attn}.o_proj", c.hidden_size)
    x = nn.add(b, nn.dropout(b, y, f"{path}.dropout", c.hidden_dropout_prob), x, path)
    y = nn.layer_norm(b, x, f"{path}.layernorm_after")
    y = nn.linear(b, y, f"{path}.mlp.fc1", c.intermediate_size)
    y = nn.activation(b, y, f"{path}.mlp.activation_fn", c.hidden_act)
    y = nn.linear(b, y, f"{path}.mlp.fc2", c.hidden_size)
    return nn.add(b, nn.dropout(b, y, f"{path}.dropout", c.hidden_dropout_prob), x, path)
