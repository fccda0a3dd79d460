"""The size of the mixture of experts: numbers of nobody's paper, small enough for a processor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from partita.errors import ModelError, nearest


@dataclass(frozen=True)
class Size:
    """Layers, width of the residual stream, attention heads, experts and their width.

    A token goes to its ``chosen`` best experts. An expert takes no more of a sample than ``slack`` times its even
    share.
    """

    layers: int
    width: int
    heads: int
    experts: int
    expert_width: int
    chosen: int
    slack: float
    vocabulary: int
    context: int

    def capacity(self, seq: int) -> int:
        """Tokens of a sample of ``seq`` that an expert takes."""
        return min(seq, ceil(self.slack * self.chosen * seq / self.experts))


SIZES = {
    # Tokens are bytes.
    "mixture-tiny": Size(4, 32, 4, 4, 64, chosen=2, slack=1.25, vocabulary=256, context=64),
}


def config(name: str) -> dict[str, Any]:
    """The fields of one of the sizes; ModelError with the nearest names for any other."""
    if name not in SIZES:
        raise ModelError(f'there is no mixture of experts "{name}".{nearest(name, SIZES)}')
    return asdict(SIZES[name])
