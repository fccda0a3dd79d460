"""The formats by their names."""

from __future__ import annotations

from importlib import import_module

from partita.errors import InputError, nearest
from partita.workload.asked import Format

# Each module has a ``FORMAT``.
MODULES = {
    "dnn-partitioning": "partita.workload.placement", "pipedream": "partita.workload.pipedream",
    "piper": "partita.workload.piper",
}  # fmt: skip


def format_of(name: str) -> Format:
    """The format of a name; InputError where there is none."""
    if name not in MODULES:
        raise InputError(f'--format "{name}": there is no such format.{nearest(name, MODULES)}')
    found: Format = import_module(MODULES[name]).FORMAT
    return found
