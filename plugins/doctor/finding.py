"""One thing that is wrong or worth knowing, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["broken", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """*broken*: the recipes don't work, and the exit status is 1. *warning*: something may not. *note*: to know."""

    severity: Severity
    what: str
    mend: str
