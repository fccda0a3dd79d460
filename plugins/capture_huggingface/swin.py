"""Swin image classifier: attention inside windows that shift every other layer, and patch merging between stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from partita.errors import ModelError
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
    Tuples,
    divide,
)
from partita.plugins.capture_huggingface.windows import Windows, window_attention

# A stage doubles the width: more of them than this and no image is large enough.
Stages = Field(min_length=1, max_length=16)


class SwinSettings(ImageSettings):
    """Keys of a ``swin`` configuration that shape its graph, with the defaults of ``SwinConfig``."""

    also: ClassVar[Mapping[str, str]] = {"num_attention_heads": "num_heads"}

    patch_size: Pair = Field(default=[4, 4])
    embed_dim: Size = 96
    depths: Annotated[list[Layers], Tuples, Stages] = Field(default=[2, 2, 6, 2])
    num_heads: Annotated[list[Size], Tuples, Stages] = Field(default=[3, 6, 12, 24])
    window_size: Size = 7
    mlp_ratio: Annotated[float, Field(gt=0, le=1024)] = 4.0
    qkv_bias: bool = True
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    drop_path_rate: Probability = 0.1
    hidden_act: Activation = "gelu"
    use_absolute_embeddings: bool = False


def build(c: SwinSettings, b: Builder) -> Graph:
    """``SwinForImageClassification`` with labels."""
    if len(c.num_heads) != len(c.depths):
        raise ModelError(
            f"depths={c.depths} has {len(c.depths)} stages and num_heads={c.num_heads} has {len(c.num_heads)}; "
            f"each needs one number a stage"
        )
    for index, heads in enumerate(c.num_heads):
        divide(f"embed_dim * {2**index}", c.embed_dim * 2**index, f"num_heads[{index}]", heads)
    if int(c.mlp_ratio * c.embed_dim) < 1:
        raise ModelError(f"mlp_ratio={c.mlp_ratio} leaves no hidden unit at embed_dim={c.embed_dim}; 1 and more work")
    classes = c.classes
    pixels = b.input("pixel_values", (b.samples, c.num_channels, *c.image_size), b.dtype)
    labels = b.input("labels", (b.samples,))
    b.block("embedding")
    first, x = _embedding(c, b, pixels, "swin.embeddings")
    grids = _grids(c, first)
    layer = 0
    for stage, depth in enumerate(c.depths):
        path = f"swin.encoder.layers.{stage}"
        for index in range(depth):
            drop = c.drop_path_rate * layer / max(sum(c.depths) - 1, 1)
            x = _layer(c, b, x, f"{path}.blocks.{index}", c.num_heads[stage], _windows(c, grids[stage], index), drop)
            layer += 1
        if stage < len(c.depths) - 1:
            x = _downsample(b, x, grids[stage], f"{path}.downsample")
    b.block("head")
    x = nn.layer_norm(b, x, "swin.layernorm")
    x = b.op("mean", [x], (b.samples, x.shape[-1]), "swin.pooler", dim=[1], keepdim=False)
    return cross_entropy_loss(b, nn.linear(b, x, "classifier", classes), labels)


def _grids(c: SwinSettings, first: tuple[int, int]) -> list[tuple[int, int]]:
    """Tokens down and across in each stage: each halves them, rounding up. ModelError where a window doesn't fit."""
    grids = [first]
    while len(grids) < len(c.depths):
        height, width = grids[-1]
        grids.append(((height + 1) // 2, (width + 1) // 2))
    for stage, grid in enumerate(grids):
        if min(grid) < c.window_size:
            raise ModelError(
                f"window_size={c.window_size} is larger than the {grid[0]} x {grid[1]} grid of stage {stage} "
                f"(image_size={c.image_size}, patch_size={c.patch_size}); window_size up to {min(grids[-1])} works"
            )
    return grids


def _windows(c: SwinSettings, grid: tuple[int, int], index: int) -> Windows:
    """Windows of one layer: every other layer's shift, unless one window covers the shorter side of the grid."""
    shift = c.window_size // 2 if index % 2 and min(grid) > c.window_size else 0
    return Windows(grid, c.window_size, shift)


def _embedding(c: SwinSettings, b: Builder, pixels: Tensor, path: str) -> tuple[tuple[int, int], Tensor]:
    """The first stage's grid, and its tokens ``[b, grid, embed_dim]``."""
    whole = patch_grid(c.image_size, c.patch_size)
    patches = f"{path}.patch_embeddings"
    bottom, right = (-size % patch for size, patch in zip(c.image_size, c.patch_size, strict=True))
    if bottom or right:
        if c.use_absolute_embeddings:
            raise ModelError(
                f"image_size={c.image_size} is no multiple of patch_size={c.patch_size}, which "
                f"use_absolute_embeddings needs; {[n * p for n, p in zip(whole, c.patch_size, strict=True)]} is"
            )
        pixels = nn.pad(b, pixels, [0, right, 0, bottom], patches)
    grid = patch_grid(list(pixels.shape[2:]), c.patch_size)
    x = nn.layer_norm(b, patch_embedding(b, pixels, patches, c.embed_dim, c.patch_size), f"{path}.norm")
    if c.use_absolute_embeddings:
        x = nn.add(b, x, b.parameter(f"{path}.position_embeddings", 1, *x.shape[1:]), path)
    return grid, nn.dropout(b, x, f"{path}.dropout", c.hidden_dropout_prob)


def _layer(c: SwinSettings, b: Builder, x: Tensor, path: str, heads: int, windows: Windows, drop: float) -> Tensor:
    b.block(path)
    y = nn.layer_norm(b, x, f"{path}.layernorm_before")
    y = windows.cut(b, y, path)
    y = window_attention(b, y, f"{path}.attention", heads, windows, bias=c.qkv_bias, p=c.attention_probs_dropout_prob)
    y = nn.dropout(b, y, f"{path}.dropout", c.hidden_dropout_prob)
    y = windows.join(b, y, path)
    if drop > 0:
        # Stochastic depth drops a sample's whole branch: the mask has one entry a sample.
        y = b.op("dropout", [y], y.shape, f"{path}.drop_path", name=f"{path}.drop_path", p=drop, per_sample=True)
    x = nn.add(b, x, y, path)
    width = x.shape[-1]
    y = nn.layer_norm(b, x, f"{path}.layernorm_after")
    y = nn.linear(b, y, f"{path}.mlp.fc1", int(c.mlp_ratio * width))
    y = nn.activation(b, y, f"{path}.mlp.activation_fn", c.hidden_act)
    y = nn.linear(b, y, f"{path}.mlp.fc2", width)
    return nn.add(b, nn.dropout(b, y, f"{path}.dropout", c.hidden_dropout_prob), x, path)


def _downsample(b: Builder, x: Tensor, grid: tuple[int, int], path: str) -> Tensor:
    """Patch merging: ``[b, h w, c] -> [b, h/2 w/2, 2 c]`` through the four neighbours side by side."""
    b.block(path)
    (height, width), channels = grid, x.shape[-1]
    x = nn.view(b, x, (b.samples, height, width, channels), path)
    if height % 2 or width % 2:
        x = nn.pad(b, x, [0, 0, 0, width % 2, 0, height % 2], path)
    rows, columns = x.shape[1] // 2, x.shape[2] // 2
    corners = []
    for column in range(2):
        for row in range(2):
            picked = nn.slice_dim(b, x, 1, row, x.shape[1], path, step=2)
            corners.append(nn.slice_dim(b, picked, 2, column, x.shape[2], path, step=2))
    y = b.op("cat", corners, (b.samples, rows, columns, 4 * channels), path, dim=-1)
    y = nn.view(b, y, (b.samples, rows * columns, 4 * channels), path)
    return nn.linear(b, nn.layer_norm(b, y, f"{path}.norm"), f"{path}.reduction", 2 * channels, bias=False)
