"""What is asked about a profile's file beside the file itself, and which format takes which of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from partita.errors import InputError, listed
from partita.workload.answer import WorkloadPlan

OPTIONS = {
    "devices": "--devices", "memory_bytes": "--memory-gib", "micro_batches": "--micro-batches",
    "bytes_per_second": "--bytes-per-second",
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """None: as the file says. ``fix``: decisions that are held, such as ``dp=1``."""

    devices: int | None = None
    memory_bytes: float | None = None
    micro_batches: int | None = None
    bytes_per_second: float | None = None
    fix: tuple[str, ...] = ()

    def check(self, name: str, needed: Sequence[str], taken: Sequence[str], fixed: Sequence[str]) -> None:
        """InputError where something needed is missing, or something is given that the format has no place for."""
        for field in fields(self):
            if field.name == "fix":
                continue
            value, option = getattr(self, field.name), OPTIONS[field.name]
            if value is None:
                if field.name in needed:
                    raise InputError(f"--format {name} needs {option}: the file doesn't say it")
            elif field.name not in (*needed, *taken):
                works = listed(OPTIONS[other] for other in (*needed, *taken))
                raise InputError(f"{option} is nothing that --format {name} knows; {works} work")
            elif value < 1:
                raise InputError(f"{option} {value}: 1 or more works")
        for decision in self.fix:
            if decision not in fixed:
                works = f"{listed(fixed)} can be held" if fixed else "nothing can be held"
                raise InputError(f"--fix {decision}: with --format {name} {works}")


@dataclass(frozen=True)
class Format:
    """A file's format with its planner.

    ``solve(path, asked, deadline)``: the plan and its number of devices; ``deadline`` is a ``time.monotonic()``.
    ``sample``: what a stage's time is of. ``bytes_are``: what its bytes are. ``compiled``: the search's inner loop.
    """

    solve: Callable[[str, Asked, float], tuple[WorkloadPlan, int]]
    sample: str
    bytes_are: str
    compiled: Callable[..., Any]
