"""The model: a causal decoder with a mixture of experts in every layer. Nothing in it knows of stages or devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from partita.recipes.attention import Attention
from partita.recipes.mixture.experts import Mixture
from partita.recipes.mixture.sizes import SIZES, Size

IGNORED = -100


class Result(NamedTuple):
    """What the model returns."""

    loss: Tensor


class Layer(nn.Module):
    """Attention and a mixture, each on what is normalised and added to what came in."""

    def __init__(self, size: Size):
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size.width, size.heads, causal=True)
        self.mixture_norm = nn.LayerNorm(size.width)
        self.mixture = Mixture(size)

    def forward(self, value: Tensor) -> Tensor:
        value = value + self.attention(self.attention_norm(value))
        return value + self.mixture(self.mixture_norm(value))


class MixtureOfExperts(nn.Module):
    """``input_ids`` and ``labels`` int64 [b, s]: the loss is that of the next token, where its label isn't -100."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.words = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Result:
        value = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            value = layer(value)
        logits = self.words(self.norm(value))
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        following = pad(labels, (0, 1), value=IGNORED)[:, 1:]
        return Result(cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED))


def factory(name: str) -> Callable[[], nn.Module]:
    """What builds the model of that name."""
    return lambda: MixtureOfExperts(SIZES[name])


def example(seq: int) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of the shape that training uses, for any number of samples."""
    return lambda samples: {name: torch.zeros(samples, seq, dtype=torch.long) for name in ("input_ids", "labels")}
