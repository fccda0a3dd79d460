"""A finding: how bad, where it stands in the user's file, the numbers, and what would work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["problem", "warning", "note"]


@dataclass(frozen=True)
class Place:
    """A key of a file. ``line`` counts from 1; None where the key isn't written, or the value came from an option."""

    file: str
    line: int | None
    path: str

    def __str__(self) -> str:
        spot = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{spot}: {self.path}" if self.path else spot


@dataclass(frozen=True)
class Finding:
    """*problem*: the run stops, or computes something else than what is meant. *warning*: it runs, and something is
    lost. *note*: good to know.

    ``works``: changes of which each alone would do.
    """

    severity: Severity
    message: str
    place: Place
    works: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "severity": self.severity, "file": self.place.file, "line": self.place.line, "path": self.place.path,
            "message": self.message, "works": list(self.works),
        }  # fmt: skip


def problem(place: Place, message: str, *works: str) -> Finding:
    return Finding("problem", message, place, works)


def warning(place: Place, message: str, *works: str) -> Finding:
    return Finding("warning", message, place, works)


def note(place: Place, message: str, *works: str) -> Finding:
    return Finding("note", message, place, works)
