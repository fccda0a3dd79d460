"""``partita.redistribute`` and ``partita.redistribute_dtensor``, as a plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.hooks import hookimpl


@hookimpl
def partita_function(name: str) -> Callable[..., Any] | None:
    if name == "redistribute":
        from partita.adapters.torch.redistribute.function import redistribute

        return redistribute
    if name == "redistribute_dtensor":
        from partita.adapters.torch.redistribute.dtensor import redistribute_dtensor

        return redistribute_dtensor
    return None
