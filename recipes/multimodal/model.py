"""The model: a branch of transformer layers for each modality, joined by concatenation. It knows of no stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from partita.recipes.attention import Attention
from partita.recipes.multimodal.sizes import SIZES, Size


class Result(NamedTuple):
    """What the model returns."""

    loss: Tensor


class Embedding(nn.Module):
    """[b, positions, width] from words int64 [b, positions], or from [b, positions, numbers]."""

    def __init__(self, size: Size, branch: int):
        super().__init__()
        inputs = size.inputs[branch]
        words = size.modalities[branch] == "text"
        self.content = nn.Embedding(inputs, size.width) if words else nn.Linear(inputs, size.width)
        self.places = nn.Embedding(size.positions, size.width)

    def forward(self, value: Tensor) -> Tensor:
        return self.content(value) + self.places(torch.arange(value.shape[1], device=value.device))


class Layer(nn.Module):
    """Attention and two linear layers, each on what is normalised and added to what came in.

    The first layer of a branch embeds its modality before: so a branch is its layers and nothing else.
    """

    def __init__(self, size: Size, embedding: Embedding | None):
        super().__init__()
        self.embedding = embedding
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size.width, size.heads)
        self.linear_norm = nn.LayerNorm(size.width)
        self.widen = nn.Linear(size.width, 4 * size.width)
        self.narrow = nn.Linear(4 * size.width, size.width)

    def forward(self, value: Tensor) -> Tensor:
        if self.embedding is not None:
            value = self.embedding(value)
        value = value + self.attention(self.attention_norm(value))
        return value + self.narrow(gelu(self.widen(self.linear_norm(value))))


class Head(nn.Module):
    """The logits [b, classes] of the branches: the mean over the positions of each, side by side."""

    def __init__(self, size: Size):
        super().__init__()
        joined = len(size.inputs) * size.width
        self.norm = nn.LayerNorm(joined)
        self.hidden = nn.Linear(joined, size.width)
        self.classes = nn.Linear(size.width, size.classes)

    def forward(self, *branches: Tensor) -> Tensor:
        joined = torch.cat([branch.mean(1) for branch in branches], dim=-1)
        return self.classes(gelu(self.hidden(self.norm(joined))))


class Multimodal(nn.Module):
    """``text`` int64 [b, positions], the other modalities [b, positions, numbers]; ``labels`` int64 [b]."""

    def __init__(self, size: Size):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.ModuleList(Layer(size, None if layer else Embedding(size, branch)) for layer in range(size.layers))
            for branch in range(len(size.inputs))
        )
        self.head = Head(size)

    def forward(
        self, labels: Tensor, text: Tensor, image: Tensor, sound: Tensor, motion: Tensor | None = None
    ) -> Result:
        given, made = [value for value in (text, image, sound, motion) if value is not None], []
        for value, layers in zip(given, self.branches, strict=True):
            for layer in layers:
                value = layer(value)
            made.append(value)
        logits = self.head(*made)
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        return Result(cross_entropy(logits, labels))


def factory(name: str) -> Callable[[], nn.Module]:
    """What builds the model of that name."""
    return lambda: Multimodal(SIZES[name])


def example(name: str, dtype: torch.dtype) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of the shape that training uses, for any number of samples."""
    size = SIZES[name]

    def inputs(samples: int) -> dict[str, Tensor]:
        found = {"labels": torch.zeros(samples, dtype=torch.long)}
        for modality, numbers in zip(size.modalities, size.inputs, strict=True):
            if modality == "text":
                found[modality] = torch.zeros(samples, size.positions, dtype=torch.long)
            else:
                found[modality] = torch.zeros(samples, size.positions, numbers, dtype=dtype)
        return found

    return inputs
