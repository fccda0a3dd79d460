"""Sizes of the multi-modal transformer: a tiny one, and that of GraphPipe.

GraphPipe (Jeon et al., 2025, arXiv 2406.17145) trains four branches of eight transformer layers each. Widths, heads,
positions and what a position of each modality holds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

MODALITIES = ("text", "image", "sound", "motion")


@dataclass(frozen=True)
class Size:
    """``inputs`` has an entry for each branch, in the order of ``MODALITIES``: the words of the text's vocabulary, of
    the others the numbers at a position. Each branch has ``layers``, ``width`` and ``heads``, and reads so many
    ``positions``. A modality is in one of ``states``; a class is the states of all of them.
    """

    inputs: tuple[int, ...]
    layers: int
    width: int
    heads: int
    positions: int
    states: int

    @property
    def modalities(self) -> tuple[str, ...]:
        return MODALITIES[: len(self.inputs)]

    @property
    def classes(self) -> int:
        return int(self.states ** len(self.inputs))


SIZES = {
    "multimodal-tiny": Size((16, 12, 8), layers=2, width=32, heads=4, positions=8, states=2),
    # A patch of the image is 16 × 16 pixels of three colours.
    "multimodal-4x8": Size((32768, 768, 128, 64), layers=8, width=1024, heads=16, positions=256, states=4),
}
