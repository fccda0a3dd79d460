"""Shifted windows: cutting a grid of tokens into windows, attention inside each, and joining them again."""

from __future__ import annotations

from dataclasses import dataclass

from partita.graph import Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder


@dataclass(frozen=True)
class Windows:
    """Square windows of ``size`` over a ``grid`` (height, width) of tokens, shifted cyclically by ``shift``."""

    grid: tuple[int, int]
    size: int
    shift: int

    @property
    def padded(self) -> tuple[int, int]:
        """The grid padded up to whole windows."""
        return self.grid[0] + -self.grid[0] % self.size, self.grid[1] + -self.grid[1] % self.size

    @property
    def counts(self) -> tuple[int, int]:
        """Windows down and across."""
        return self.padded[0] // self.size, self.padded[1] // self.size

    def cut(self, b: Builder, x: Tensor, path: str) -> Tensor:
        """``[b, h w, c] -> [b windows, size size, c]``."""
        channels = x.shape[-1]
        x = nn.view(b, x, (b.samples, *self.grid, channels), path)
        bottom, right = (after - before for before, after in zip(self.grid, self.padded, strict=True))
        if bottom or right:
            x = nn.pad(b, x, [0, 0, 0, right, 0, bottom], path)
        if self.shift:
            x = b.op("roll", [x], x.shape, path, shifts=[-self.shift, -self.shift], dims=[1, 2])
        down, across = self.counts
        x = nn.view(b, x, (b.samples, down, self.size, across, self.size, channels), path)
        x = nn.permute(b, x, (0, 1, 3, 2, 4, 5), path)
        return nn.view(b, x, (b.samples * down * across, self.size**2, channels), path)

    def join(self, b: Builder, x: Tensor, path: str) -> Tensor:
        """The inverse of ``cut``."""
        channels, (down, across) = x.shape[-1], self.counts
        x = nn.view(b, x, (b.samples, down, across, self.size, self.size, channels), path)
        x = nn.permute(b, x, (0, 1, 3, 2, 4, 5), path)
        x = nn.view(b, x, (b.samples, *self.padded, channels), path)
        if self.shift:
            x = b.op("roll", [x], x.shape, path, shifts=[self.shift, self.shift], dims=[1, 2])
        for dim in (1, 2):
            if self.padded[dim - 1] != self.grid[dim - 1]:
                x = nn.slice_dim(b, x, dim, 0, self.grid[dim - 1], path)
        return nn.view(b, x, (b.samples, self.grid[0] * self.grid[1], channels), path)


def window_attention(
    b: Builder, x: Tensor, path: str, heads: int, windows: Windows, *, bias: bool, p: float
) -> Tensor:  # fmt: skip
    """Attention of ``x [b windows, tokens, c]`` inside each window, with the relative position bias."""
    width = x.shape[-1]
    q, k, v = (nn.linear(b, x, f"{path}.{part}_proj", width, bias=bias) for part in "qkv")
    scores = _position_bias(b, f"{path}.relative_position_bias", windows.size, heads)
    if windows.shift:
        scores = _masked(b, scores, path, windows)
    y = nn.attention(b, q, k, v, path, heads=heads, bias=scores, p=p)
    return nn.linear(b, y, f"{path}.o_proj", width)


def _position_bias(b: Builder, path: str, size: int, heads: int) -> Tensor:
    """``[1, heads, tokens, tokens]`` picked from the table of all differences of positions in a window."""
    tokens = size**2
    table = b.parameter(f"{path}.relative_position_bias_table", (2 * size - 1) ** 2, heads)
    index = b.buffer(f"{path}.relative_position_index", (tokens * tokens,))
    x = b.op("index", [table, index], (tokens * tokens, heads), path)
    x = nn.permute(b, nn.view(b, x, (tokens, tokens, heads), path), (2, 0, 1), path)
    return nn.view(b, x, (1, heads, tokens, tokens), path)


def _masked(b: Builder, scores: Tensor, path: str, windows: Windows) -> Tensor:
    """The bias of every window, with what the shift brought together from opposite edges masked out.

    The sum is a value of its own, one window after another, that the attention keeps for its backward pass.
    """
    count, tokens = windows.counts[0] * windows.counts[1], windows.size**2
    mask = b.buffer(f"{path}.shift_mask", (count, 1, tokens, tokens), b.dtype)
    mask = b.op("expand", [mask], (b.samples, *mask.shape), path)
    mask = nn.view(b, mask, (b.samples * count, 1, tokens, tokens), path)
    return b.op("add", [scores, mask], (b.samples * count, scores.shape[1], tokens, tokens), path)
