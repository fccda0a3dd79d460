"""Partita plans how many devices train one model, and runs the plan through the framework that you already use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__version__ = "0.1.0"

# What works on tensors of a framework is in the plugin that knows it, and is loaded when it is asked for.
FUNCTIONS = ("redistribute", "redistribute_dtensor")


def __getattr__(name: str) -> Callable[..., Any]:
    if name in FUNCTIONS:
        from partita.hooks import plugins

        found: Callable[..., Any] | None = plugins().hook.partita_function(name=name)
        if found is not None:
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
