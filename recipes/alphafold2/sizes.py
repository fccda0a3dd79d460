"""Sizes of the Evoformer stack: AlphaFold2's own and the largest that SuperScaler trains, each at three sizes of input.

A name says blocks, width of the MSA track and width of the pair track; sequences × residues where they aren't
AlphaFold2's of initial training, 128 × 256. AlphaFold2 (Jumper et al., 2021) has 48 blocks, widths of 256 and 128, and
heads of 32 channels: 8 on the MSA, 4 on pairs. Of SuperScaler's largest (Lin et al., 2023, arXiv 2301.08984) only
blocks and widths are published; its heads are taken to be as wide.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from partita.errors import ModelError, nearest

INPUTS = ((128, 256), (512, 256), (512, 384))


@dataclass(frozen=True)
class Size:
    """Evoformer blocks; channels and heads of both tracks; sequences and residues of a sample.

    ``outer`` is the width of the outer product mean; ``bins`` are those of a distance, ``reach`` the largest offset
    that relative positions tell apart. ``recycles`` passes without gradient come before the one with.
    """

    blocks: int
    msa_width: int
    pair_width: int
    msa_heads: int
    pair_heads: int
    sequences: int
    residues: int
    outer: int = 32
    bins: int = 64
    reach: int = 32
    recycles: int = 2


def _published(blocks: int, msa_width: int, pair_width: int) -> dict[str, Size]:
    name = f"alphafold2-{blocks}-{msa_width}-{pair_width}"
    return {
        name if (sequences, residues) == INPUTS[0] else f"{name}-{sequences}x{residues}": Size(
            blocks, msa_width, pair_width, msa_width // 32, pair_width // 32, sequences, residues
        )
        for sequences, residues in INPUTS
    }


SIZES = {
    "alphafold2-tiny": Size(4, 16, 8, 4, 4, sequences=4, residues=8, outer=4, bins=8, reach=4),
    **_published(48, 256, 128),
    **_published(128, 1024, 512),
}


def config(name: str) -> dict[str, Any]:
    """The fields of one of the sizes; ModelError with the nearest names for any other."""
    if name not in SIZES:
        raise ModelError(f'there is no size "{name}" of AlphaFold2.{nearest(name, SIZES)}')
    return asdict(SIZES[name])
