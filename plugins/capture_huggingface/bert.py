"""BERT: learned positions, norms after the residual; with its masked-language head, or plain with the pooler."""

from __future__ import annotations

from typing import ClassVar

from partita.errors import ModelError
from partita.graph import Graph, Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.losses import cross_entropy_loss
from partita.plugins.capture_huggingface.settings import Activation, Layers, Probability, Size, TokenSettings, divide


class BertSettings(TokenSettings):
    """Keys of a ``bert`` configuration that shape its graph, with the defaults of ``BertConfig``."""

    learned: ClassVar[str | None] = "max_position_embeddings"

    vocab_size: Size = 30522
    hidden_size: Size = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    is_decoder: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True

    @property
    def longest(self) -> int:
        return self.max_position_embeddings


def build(c: BertSettings, b: Builder) -> Graph:
    """``BertForMaskedLM`` with labels, or ``BertModel`` (no loss) where the configuration names that."""
    divide("hidden_size", c.hidden_size, "num_attention_heads", c.num_attention_heads)
    if c.add_cross_attention:
        raise ModelError("add_cross_attention=true needs an encoder, which a bert configuration doesn't describe")
    plain = (c.architectures or [""])[0] == "BertModel"
    root = "" if plain else "bert."
    ids = b.input("input_ids", (b.samples, b.seq))
    b.block("embedding")
    x = _embedding(c, b, ids, f"{root}embeddings")
    for index in range(c.num_hidden_layers):
        x = _layer(c, b, x, f"{root}encoder.layer.{index}")
    b.block("head")
    if plain:
        first = b.op("select", [x], (b.samples, c.hidden_size), "pooler", dim=1, index=0)
        pooled = nn.activation(b, nn.linear(b, first, "pooler.dense", c.hidden_size), "pooler.activation", "tanh")
        return b.graph([x, pooled], None)
    logits = _language_head(c, b, x)
    return cross_entropy_loss(b, logits, b.input("labels", (b.samples, b.seq)))


def _embedding(c: BertSettings, b: Builder, ids: Tensor, path: str) -> Tensor:
    x = nn.embedding(b, ids, f"{path}.word_embeddings", c.vocab_size, c.hidden_size)
    types = b.op("expand", [b.buffer("token_type_ids", (1, b.seq))], ids.shape, path)
    types = nn.embedding(b, types, f"{path}.token_type_embeddings", c.type_vocab_size, c.hidden_size)
    x = nn.add(b, x, types, path)
    places = b.buffer("position_ids", (1, b.seq))
    places = nn.embedding(b, places, f"{path}.position_embeddings", c.max_position_embeddings, c.hidden_size)
    x = nn.layer_norm(b, nn.add(b, x, places, path), f"{path}.LayerNorm")
    return nn.dropout(b, x, f"{path}.dropout", c.hidden_dropout_prob)


def _layer(c: BertSettings, b: Builder, x: Tensor, path: str) -> Tensor:
    b.block(path)
    attn = f"{path}.attention.self"
    q, k, v = (nn.linear(b, x, f"{attn}.{part}", c.hidden_size) for part in ("query", "key", "value"))
    y = nn.attention(
        b, q, k, v, attn, heads=c.num_attention_heads, causal=c.is_decoder, p=c.attention_probs_dropout_prob
    )
    x = _output(c, b, y, x, f"{path}.attention.output")
    y = nn.linear(b, x, f"{path}.intermediate.dense", c.intermediate_size)
    y = nn.activation(b, y, f"{path}.intermediate.intermediate_act_fn", c.hidden_act)
    return _output(c, b, y, x, f"{path}.output")


def _output(c: BertSettings, b: Builder, y: Tensor, x: Tensor, path: str) -> Tensor:
    y = nn.dropout(b, nn.linear(b, y, f"{path}.dense", c.hidden_size), f"{path}.dropout", c.hidden_dropout_prob)
    return nn.layer_norm(b, nn.add(b, y, x, path), f"{path}.LayerNorm")


def _language_head(c: BertSettings, b: Builder, x: Tensor) -> Tensor:
    """Scores of the vocabulary. The module holds the bias twice, under one parameter only where weights are tied."""
    path = "cls.predictions"
    bias = b.parameter(f"{path}.bias", c.vocab_size)
    x = nn.linear(b, x, f"{path}.transform.dense", c.hidden_size)
    x = nn.activation(b, x, f"{path}.transform.transform_act_fn", c.hidden_act)
    x = nn.layer_norm(b, x, f"{path}.transform.LayerNorm")
    if not c.tie_word_embeddings:
        return nn.linear(b, x, f"{path}.decoder", c.vocab_size)
    table = b.parameter("bert.embeddings.word_embeddings.weight", c.vocab_size, c.hidden_size)
    b.tie(f"{path}.decoder.weight", table.name)
    b.tie(f"{path}.decoder.bias", bias.name)
    return nn.linear(b, x, f"{path}.decoder", c.vocab_size, weight=table, bias_weight=bias)
