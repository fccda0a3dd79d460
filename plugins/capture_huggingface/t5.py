"""T5: encoder and decoder with cross-attention, relative position biases made in each stack's first block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from partita.graph import Graph, Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.losses import cross_entropy_loss
from partita.plugins.capture_huggingface.settings import Layers, Probability, Size, TokenSettings


class T5Settings(TokenSettings):
    """Keys of a ``t5`` configuration that shape its graph, with the defaults of ``T5Config``.

    Input and output embeddings are always one parameter; ``tie_word_embeddings: false``, as T5 1.1 has it, only says
    that the decoder's output is not scaled.
    """

    also: ClassVar[Mapping[str, str]] = {
        "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }  # fmt: skip

    vocab_size: Size = 32128
    d_model: Size = 512
    d_kv: Size = 64
    d_ff: Size = 2048
    num_layers: Layers = 6
    num_decoder_layers: Layers | None = None
    num_heads: Size = 8
    relative_attention_num_buckets: Size = 32
    dropout_rate: Probability = 0.1
    feed_forward_proj: Literal[
        "relu", "gelu", "gelu_new", "silu", "tanh", "gated-gelu", "gated-gelu_new", "gated-relu", "gated-silu"
    ] = "relu"  # fmt: skip
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None

    @property
    def longest(self) -> int:
        return 512


def build(c: T5Settings, b: Builder) -> Graph:
    """``T5ForConditionalGeneration`` with ``input_ids`` and ``labels``; the decoder reads the labels shifted right."""
    ids, labels = b.input("input_ids", (b.samples, b.seq)), b.input("labels", (b.samples, b.seq))
    b.block("embedding")
    table = b.parameter("shared.weight", c.vocab_size, c.d_model)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        b.tie(f"{name}.weight", table.name)
    x = nn.embedding(b, ids, "encoder.embed_tokens", c.vocab_size, c.d_model, weight=table)
    x = nn.dropout(b, x, "encoder.dropout", c.dropout_rate)
    bias = None
    for index in range(c.num_layers):
        x, bias, _ = _block(c, b, x, f"encoder.block.{index}", bias)
    b.block("between.0")
    encoded = nn.dropout(b, nn.rms_norm(b, x, "encoder.final_layer_norm"), "encoder.dropout", c.dropout_rate)
    # Ignored labels become padding tokens as well: which ids are looked up changes no shape.
    shifted = nn.pad(b, nn.slice_dim(b, labels, 1, 0, labels.shape[1] - 1, ""), [1, 0], "")
    x = nn.embedding(b, shifted, "decoder.embed_tokens", c.vocab_size, c.d_model, weight=table)
    x = nn.dropout(b, x, "decoder.dropout", c.dropout_rate)
    bias = cross = None
    for index in range(c.num_decoder_layers or c.num_layers):
        x, bias, cross = _block(c, b, x, f"decoder.block.{index}", bias, encoded, cross)
    b.block("head")
    x = nn.dropout(b, nn.rms_norm(b, x, "decoder.final_layer_norm"), "decoder.dropout", c.dropout_rate)
    scaled = c.tie_word_embeddings if c.scale_decoder_outputs is None else c.scale_decoder_outputs
    if scaled:
        x = b.op("scale", [x], x.shape, "", factor=c.d_model**-0.5)
    logits = nn.linear(b, x, "lm_head", c.vocab_size, bias=False, weight=table)
    return cross_entropy_loss(b, logits, labels)


def _block(
    c: T5Settings,
    b: Builder,
    x: Tensor,
    path: str,
    bias: Tensor | None,
    encoded: Tensor | None = None,
    cross: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One block and the position biases that it used, which the first block of a stack makes for all."""
    b.block(path)
    layer = f"{path}.layer.0"
    y = nn.rms_norm(b, x, f"{layer}.layer_norm")
    y, bias = _attention(c, b, y, y, f"{layer}.SelfAttention", bias, causal=encoded is not None)
    x = nn.add(b, x, nn.dropout(b, y, f"{layer}.dropout", c.dropout_rate), layer)
    if encoded is not None:
        layer = f"{path}.layer.1"
        y = nn.rms_norm(b, x, f"{layer}.layer_norm")
        y, cross = _cross_attention(c, b, y, encoded, f"{layer}.EncDecAttention", cross)
        x = nn.add(b, x, nn.dropout(b, y, f"{layer}.dropout", c.dropout_rate), layer)
    layer = f"{path}.layer.{1 if encoded is None else 2}"
    y = _feed_forward(c, b, nn.rms_norm(b, x, f"{layer}.layer_norm"), f"{layer}.DenseReluDense")
    return nn.add(b, x, nn.dropout(b, y, f"{layer}.dropout", c.dropout_rate), layer), bias, cross


def _project(c: T5Settings, b: Builder, x: Tensor, path: str) -> Tensor:
    return nn.linear(b, x, path, c.num_heads * c.d_kv, bias=False)


def _attention(
    c: T5Settings, b: Builder, x: Tensor, source: Tensor, path: str, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    q, k, v = (_project(c, b, z, f"{path}.{part}") for z, part in ((x, "q"), (source, "k"), (source, "v")))
    if bias is None:
        seq = x.shape[1]
        buckets = b.buffer(f"{path}.position_buckets", (seq, seq))
        table = f"{path}.relative_attention_bias"
        bias = nn.embedding(b, buckets, table, c.relative_attention_num_buckets, c.num_heads)
        bias = nn.view(b, nn.permute(b, bias, (2, 0, 1), path), (1, c.num_heads, seq, seq), path)
    y = nn.attention(b, q, k, v, path, heads=c.num_heads, causal=causal, bias=bias, p=c.dropout_rate)
    return nn.linear(b, y, f"{path}.o", c.d_model, bias=False), bias


def _cross_attention(
    c: T5Settings, b: Builder, x: Tensor, encoded: Tensor, path: str, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention to the encoder's output. Its position bias is zeros of full size that all blocks of the stack read."""
    q, k, v = (_project(c, b, z, f"{path}.{part}") for z, part in ((x, "q"), (encoded, "k"), (encoded, "v")))
    if bias is None:
        zeros = b.buffer(f"{path}.position_bias", (1, c.num_heads, x.shape[1], encoded.shape[1]), b.dtype)
        bias = b.op("expand", [zeros], (b.samples, *zeros.shape[1:]), path)
    y = nn.attention(b, q, k, v, path, heads=c.num_heads, bias=bias, p=c.dropout_rate)
    return nn.linear(b, y, f"{path}.o", c.d_model, bias=False), bias


def _feed_forward(c: T5Settings, b: Builder, x: Tensor, path: str) -> Tensor:
    gate, _, name = c.feed_forward_proj.rpartition("-")
    # Configurations say "gated-gelu" and mean the tanh approximation.
    name = "gelu_new" if gate and name == "gelu" else name
    y = nn.linear(b, x, f"{path}.wi_0" if gate else f"{path}.wi", c.d_ff, bias=False)
    y = nn.activation(b, y, f"{path}.act", name)
    if gate:
        y = b.op("mul", [y, nn.linear(b, x, f"{path}.wi_1", c.d_ff, bias=False)], y.shape, path)
    y = nn.dropout(b, y, f"{path}.dropout", c.dropout_rate)
    return nn.linear(b, y, f"{path}.wo", c.d_model, bias=False)
