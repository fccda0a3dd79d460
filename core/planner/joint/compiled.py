"""Inner loops that numba compiles at their first use, and keeps on disk where a folder for it can be written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numba import njit


def _load_without_blas() -> None:
    """Load numba's array functions, which import SciPy's linear algebra only to see whether it is there: that takes
    longer than all of a short search. Nothing here needs it; code that does still gets it where it is compiled."""
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]
    try:
        from numba.np import arraymath
    finally:
        del sys.modules["scipy.linalg"]
    arraymath._HAVE_BLAS = find_spec("scipy") is not None


_load_without_blas()


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
