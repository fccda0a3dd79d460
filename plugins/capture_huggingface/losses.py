"""Heads' losses: cross entropy as transformers computes it for each kind of model."""

from __future__ import annotations

from partita.graph import Graph, Loss, Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder

IGNORED = -100


def causal_head(b: Builder, x: Tensor, labels: Tensor, embedding: str, vocabulary: int, tied: bool) -> Graph:
    """The finished graph of a causal language model, from its last hidden state: ``lm_head`` and loss.

    ``tied`` says that ``lm_head`` has the weight of the module at path ``embedding``.
    """
    table = None
    if tied:
        table = b.parameter(f"{embedding}.weight", vocabulary, x.shape[-1])
        b.tie("lm_head.weight", table.name)
    return causal_loss(b, nn.linear(b, x, "lm_head", vocabulary, bias=False, weight=table), labels)


def causal_loss(b: Builder, logits: Tensor, labels: Tensor) -> Graph:
    """Loss of token t's logits against label t + 1; logits are raised to float32 first.

    As in transformers, labels are shifted left by one with an ignored label at the end, so that logits stay whole.
    """
    if logits.dtype != "float32":
        logits = b.op("to", [logits], logits.shape, "", out_dtype="float32", dtype="float32")
    padded = nn.pad(b, labels, [0, 1], "", value=IGNORED)
    shifted = nn.slice_dim(b, padded, 1, 1, padded.shape[1], "")
    return cross_entropy_loss(b, logits, shifted)


def cross_entropy_loss(b: Builder, logits: Tensor, targets: Tensor) -> Graph:
    """The finished graph: mean cross entropy of ``logits [.., classes]`` over ``targets [..]`` that are not ignored."""
    loss = b.op("cross_entropy", [logits, targets], (), "", ignore_index=IGNORED)
    # Not the labels: the loss is the mean over what is left after the shift, one target less a sample.
    return b.graph([loss], Loss(loss.name, weighting="tokens", targets=targets.name, ignore_index=IGNORED))
