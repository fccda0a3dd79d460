"""How mesh axes cut a dim: into pieces of ceil(n/k), the last ones short or empty, as ``torch.chunk`` does it, and the
next axis cuts those."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np


def chunk(start: np.ndarray, stop: np.ndarray, at: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of intervals cut into ``count`` pieces each, those at the places ``at``."""
    piece = -((start - stop) // count)
    return np.minimum(start + at * piece, stop), np.minimum(start + (at + 1) * piece, stop)


def pieces_met(size: int, cuts: Sequence[int], start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """With how many pieces of a dim of that size, cut into so many by one axis after another, intervals have indices in
    common."""
    pieces = prod(cuts)
    if size % pieces == 0:
        piece = max(1, size // pieces)
        found = (stop - 1) // piece - start // piece + 1
    else:
        starts = _starts(size, tuple(cuts))
        found = np.searchsorted(starts, stop, "left") - np.searchsorted(starts, start, "right") + 1
    return np.where(stop > start, found, 0)


@lru_cache(maxsize=128)
def _starts(size: int, cuts: tuple[int, ...]) -> np.ndarray:
    """Where the pieces of a dim begin that aren't empty."""
    start, stop = np.zeros(1, np.int64), np.full(1, size)
    for count in cuts:
        start, stop = (ends.reshape(-1) for ends in chunk(start, stop, np.arange(count)[:, None], count))
    return np.unique(start[stop > start])
