"""Images cut into patches, each embedded as one token."""

from __future__ import annotations

from partita.errors import ModelError
from partita.graph import Tensor
from partita.plugins.capture_huggingface import layers as nn
from partita.plugins.capture_huggingface.builder import Builder


def patch_grid(image: list[int], patch: list[int]) -> tuple[int, int]:
    """Rows and columns of whole patches in an image; ModelError when there is none."""
    if patch[0] > image[0] or patch[1] > image[1]:
        raise ModelError(f"patch_size={patch} is larger than image_size={image}; up to {image} works")
    return image[0] // patch[0], image[1] // patch[1]


def patch_embedding(b: Builder, pixels: Tensor, path: str, size: int, patch: list[int]) -> Tensor:
    """``[b, c, H, W] -> [b, patches, size]`` by a convolution that steps by whole patches."""
    rows, columns = patch_grid(list(pixels.shape[2:]), patch)
    projection = f"{path}.projection"
    weight = b.parameter(f"{projection}.weight", size, pixels.shape[1], *patch)
    bias = b.parameter(f"{projection}.bias", size)
    shape = (b.samples, size, rows, columns)
    x = b.op("conv2d", [pixels, weight, bias], shape, projection, name=projection, stride=list(patch))
    x = nn.view(b, x, (b.samples, size, rows * columns), path)
    return nn.permute(b, x, (0, 2, 1), path)
