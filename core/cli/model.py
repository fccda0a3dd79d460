"""From MODEL, as a user writes it, to a graph: asks every plugin, and says what was wrong when none knows it."""

from __future__ import annotations

import os

from partita.errors import InputError, ModelError, nearest
from partita.graph import Graph
from partita.hooks import plugins, recipes

FORMS = (
    "A model is a recipe's name, a HuggingFace config.json or its folder, package.module:function, "
    "or a saved graph (.json)."
)


def load_model(model: str, seq: int | None, dtype: str, samples: int = 1) -> Graph:
    """The graph of MODEL with one sample or more, or with as many as its example inputs have.

    InputError for a file that isn't there, ModelError for a name that nobody knows.
    """
    if not model.strip():
        raise InputError(f'MODEL is empty ("{model}"). {FORMS}')
    graph: Graph | None = plugins().hook.partita_capture(model=model, samples=samples, seq=seq, dtype=dtype)
    if graph is None:
        raise unknown(model)
    return graph


def unknown(model: str) -> InputError | ModelError:
    """The error for a MODEL that no plugin takes."""
    near = nearest(model, recipes())
    if os.sep in model:
        return InputError(f"{model}: no such file or folder here ({os.getcwd()}); models are not fetched from a hub")
    if ":" in model:
        return ModelError(f'"{model}" is not of the form package.module:function. {FORMS}')
    return ModelError(f'there is no model "{model}".{near} {FORMS}')
