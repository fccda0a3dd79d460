"""Inner loops that numba compiles at their first use, and keeps on disk where a folder for it can be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled when it is first called; only this process has it where nothing can be kept."""
    try:
        kept: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:
        # Neither the package's folder nor the user's cache can be written.
        kept = njit(function)
    return kept


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether a compiled form lies on disk, as far as its index says."""
    file = getattr(getattr(function, "_cache", None), "_cache_file", None)
    index = getattr(file, "_index_path", None)
    return index is not None and Path(index).exists()
