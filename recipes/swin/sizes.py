"""Swin (Liu et al., 2021, "Swin Transformer") as HuggingFace configurations: a tiny one, Swin-T, and two large ones.

The large ones are the smallest and the largest that SuperScaler (Lin et al., 2023, arXiv 2301.08984) trains, which they
describe by layers, width and heads: images of 1536 × 1536 pixels, windows of 48 × 48 patches, depths [2, 2, L − 6, 2].
Width and heads are those of the first stage and double with every stage, as Swin's do. There is no stochastic depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partita.errors import ModelError, nearest


@dataclass(frozen=True)
class Size:
    """Layers of each stage; width and heads of the first one; ``image`` is a side in pixels, ``window`` one in patches.

    ``spread`` is the standard deviation of the initial weights.
    """

    depths: tuple[int, ...]
    width: int
    heads: int
    image: int
    window: int
    classes: int = 1000
    spread: float = 0.02


def superscaler(layers: int, width: int, heads: int) -> Size:
    """One of SuperScaler's."""
    return Size((2, 2, layers - 6, 2), width, heads, image=1536, window=48)


SIZES = {
    # Digits of 8 × 8 pixels, drawn at 32 × 32: 8 × 8 patches and then 4 × 4, in windows of 4 × 4. With the initial
    # weights of wide models hardly any signal passes a narrow one: in fifty steps it learns next to nothing.
    "swin-tiny": Size((2, 2), 32, 2, image=32, window=4, classes=10, spread=0.2),
    "swin-t": Size((2, 2, 6, 2), 96, 3, image=224, window=7),
    "swin-32l": superscaler(32, 512, 16),
    "swin-56l": superscaler(56, 1536, 32),
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
        "patch_size": 4,
        "num_channels": 3,
        "embed_dim": size.width,
        "depths": list(size.depths),
        "num_heads": [size.heads * 2**stage for stage in range(len(size.depths))],
        "window_size": size.window,
        "num_labels": size.classes,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "initializer_range": size.spread,
    }
