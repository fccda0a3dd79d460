"""Sizes of a model like Uno: a tiny one, and one with the branches of GraphPipe's.

Uno (ECP-CANDLE benchmarks, Pilot1) reads the expression of 942 genes of a cell line, and of each of two drugs its dose,
5270 descriptors and 2048 bits of fingerprints. GraphPipe (Jeon et al., 2025, arXiv 2406.17145) trains seven branches of
four dense layers of 4096 each; how many layers follow their concatenation is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

FEATURES = ("cell", "dose1", "dose2", "descriptors1", "fingerprints1", "descriptors2", "fingerprints2")


@dataclass(frozen=True)
class Size:
    """``genes``, ``descriptors`` and ``fingerprints`` are the numbers of each feature. Each branch has ``layers`` of
    ``width``, and ``top`` layers follow."""

    genes: int
    descriptors: int
    fingerprints: int
    layers: int
    width: int
    top: int

    @property
    def inputs(self) -> dict[str, int]:
        """The numbers of each feature, by its name."""
        of_drug = (self.descriptors, self.fingerprints)
        return dict(zip(FEATURES, (self.genes, 1, 1, *of_drug, *of_drug), strict=True))


SIZES = {
    "uno-tiny": Size(genes=6, descriptors=8, fingerprints=4, layers=2, width=32, top=2),
    "uno-like": Size(genes=942, descriptors=5270, fingerprints=2048, layers=4, width=4096, top=4),
}
