"""Which packages are installed, beside the versions that were tested together; from metadata, nothing is imported."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Package:
    """A package: what is ``installed`` (None: nothing), what was ``tested``, the ``least`` version that can work.

    ``module`` is what an import of it is tried with, ``extra`` what it is installed by (empty: with Partita itself),
    ``purpose`` what needs it.
    """

    name: str
    installed: str | None
    tested: str
    least: str
    module: str
    extra: str
    purpose: str

    @property
    def same(self) -> bool:
        """Whether it is the tested version. What follows a +, the kind of build, doesn't count."""
        return self.installed is not None and self.installed.split("+")[0] == self.tested

    @property
    def too_old(self) -> bool:
        return self.installed is not None and numbers(self.installed) < numbers(self.least)


def numbers(text: str) -> tuple[int, ...]:
    """The numbers at the start of a version, so that 0.19.8rc1 is after 0.9."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


@cache
def tested() -> Mapping[str, Any]:
    """The data file: what was tested together."""
    found: Mapping[str, Any] = json.loads((Path(__file__).parent / "tested.json").read_text(encoding="utf-8"))
    return found


def packages() -> list[Package]:
    """All packages that Partita works with, the frameworks first, in the order in which they are imported."""
    return [
        Package(name, _installed(name), facts["tested"], facts["least"], facts["import"], facts["extra"], facts["for"])
        for name, facts in tested()["packages"].items()
    ]


def _installed(name: str) -> str | None:
    try:
        # A broken installation may leave metadata without a version.
        return version(name) or "unknown"
    except PackageNotFoundError:
        return None
    except (KeyError, TypeError):
        return "unknown"
