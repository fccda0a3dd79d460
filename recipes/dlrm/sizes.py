"""Sizes of a model like DLRM: a tiny one, and one with the branches of GraphPipe's.

GraphPipe (Jeon et al., 2025, arXiv 2406.17145) trains seven branches of four dense layers of 4096 each. The features
and the layers after the interactions are ours, but for the 13 numbers of a sample, which are those of the advertising
data that DLRM (Naumov et al., 2019, arXiv 1906.00091) trains on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """``features`` are looked up in a table of ``rows`` rows of ``embedding`` numbers each; a further branch reads
    ``numbers`` as they are. Each branch has ``layers`` of ``width``, and ``top`` layers follow the interactions.
    """

    features: int
    numbers: int
    rows: int
    embedding: int
    layers: int
    width: int
    top: int

    @property
    def branches(self) -> int:
        return 1 + self.features


SIZES = {
    "dlrm-tiny": Size(features=3, numbers=4, rows=10, embedding=8, layers=2, width=32, top=2),
    "dlrm-like": Size(features=6, numbers=13, rows=100_000, embedding=128, layers=4, width=4096, top=4),
}
