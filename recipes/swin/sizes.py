"""Swin as HuggingFace configurations: a tiny one, Swin-T (Liu et al., 2021) and the sizes of SuperScaler's evaluation.

SuperScaler (section 6) trains images of 1536 × 1536 pixels with windows of 48 × 48 patches and depths [2, 2, L − 6, 2]; these
are the smallest and the largest of its layers, widths and heads of the first stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partita.errors import ModelError, nearest


@dataclass(frozen=True)
class Size:
    """Layers of each stage; width and heads of the first one, which double from stage to stage."""

    depths: tuple[int, ...]
    width: int
    heads: int
    image: int = 1536
    window: int = 48
    patch: int = 4
    classes: int = 1000


def _paper(layers: int, width: int, heads: int) -> Size:
    return Size((2, 2, layers - 6, 2), width, heads)


SIZES = {
    # 8 × 8 digits drawn at 32 × 32: grids of 16 × 16, then 8 × 8 patches, windows of 4 × 4.
    "swin-tiny": Size((2, 2), 32, 2, image=32, window=4, patch=2, classes=10),
    "swin-t": Size((2, 2, 6, 2), 96, 3, image=224, window=7),
    "swin-32l": _paper(32, 512, 16),
    "swin-56l": _paper(56, 1536, 32),
}


def config(name: str) -> dict[str, Any]:
    """What ``config.json`` would hold for one of the sizes; ModelError with the nearest names for any other."""
    if name not in SIZES:
        raise ModelError(f'there is no size "{name}" of Swin.{nearest(name, SIZES)}')
    size = SIZES[name]
    return {
        "model_type": "swin",
        "architectures": ["SwinForImageClassification"],
        "image_size": size.image,
        "patch_size": size.patch,
        "num_channels": 3,
        "embed_dim": size.width,
        "depths": list(size.depths),
        "num_heads": [size.heads * 2**stage for stage in range(len(size.depths))],
        "window_size": size.window,
        "num_labels": size.classes,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
    }
