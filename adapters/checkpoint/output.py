"""A file that resharding writes: its name, its size where that is known, and what writes it.

Each writer of a format gives the list of its files; ``reshard`` writes them one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Write = Callable[[Path], object]


@dataclass(frozen=True)
class Output:
    """A file under the output folder. ``bytes`` is its size where that is known before it is written."""

    name: str
    write: Write
    bytes: int | None = None
