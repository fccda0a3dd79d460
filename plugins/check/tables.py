"""What the frameworks know: keys, flags and their arity, read from data files that name their source.

The files were made with the frameworks installed, by a script that walked: for DeepSpeed the pydantic fields and
aliases of its configuration classes, the names that its plain readers look up, and the parameters of its optimizers
and schedulers (``refuses`` are the sections whose class forbids other keys); for TrainingArguments the dataclass
fields; for Megatron the options that its argument parser declares, and the dataclass fields that it turns into options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def table(name: str) -> Mapping[str, Any]:
    """The data file of that name, without its suffix."""
    found: Mapping[str, Any] = json.loads((files(__package__) / f"{name}.json").read_text(encoding="utf-8"))
    return found


@cache
def arity() -> Mapping[str, str]:
    """Megatron's flags, and the launcher's: ``switch``, ``one`` value or several ``values``."""
    flags = table("megatron_flags")
    kinds = {
        "launcher_switches": "switch", "switches": "switch",
        "launcher_one_value": "one", "one_value": "one", "values": "values",
    }  # fmt: skip
    return {flag: kind for name, kind in kinds.items() for flag in flags[name]}
