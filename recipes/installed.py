"""What a recipe needs beside the planner, and an error for it where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

from partita.errors import ModelError


def require_torch(model: str) -> None:
    """ModelError without torch: the graph of this model is exported from its module."""
    if find_spec("torch") is None:
        raise ModelError(
            f'"{model}" is captured from its torch module, and torch is not installed; pip install "partita[torch]" '
            "brings it"
        )
