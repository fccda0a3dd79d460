"""What an export is: files, and what stands in none of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partita.errors import PlanError


class Inexpressible(PlanError):
    """The plan is right and this framework can't say it: the answer to the question is no. One reason a sentence."""

    exit_status = 1

    def __init__(self, framework: str, reasons: Sequence[str]):
        super().__init__(f"the plan can't be written for {framework}: {' '.join(reasons)}")
        self.reasons = tuple(reasons)


@dataclass(frozen=True)
class Exported:
    """``files`` by name, the main one first: a JSON value, or a list of command line arguments.

    ``processes`` is how many ranks the framework must be started with; rank r is the r-th device of the plan.
    ``notes`` say what the plan means and these files can't hold.
    """

    framework: str
    files: Mapping[str, Any]
    processes: int
    notes: tuple[str, ...]

    def text(self, name: str) -> str:
        """A file's text. An argument list has one option a line, with its values."""
        content = self.files[name]
        if isinstance(content, list):
            lines: list[str] = []
            for word in content:
                if word.startswith("--"):
                    lines.append(word)
                else:
                    lines[-1] += f" {word}"
            return "\n".join(lines) + "\n"
        return json.dumps(content, indent=2) + "\n"
