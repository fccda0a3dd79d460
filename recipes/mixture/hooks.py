"""The mixture of experts as a plugin: its name can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partita.errors import ModelError
from partita.hooks import hookimpl
from partita.recipes.mixture import sizes
from partita.recipes.recipe import Module
from partita.recipes.text import TextRecipe

if TYPE_CHECKING:
    from partita.graph import Graph


class Mixture(TextRecipe):
    """The recipe behind the name mixture-tiny. It learns from the bytes of a text, as GPT-3's do."""

    names = tuple(sizes.SIZES)
    contexts = {name: size.context for name, size in sizes.SIZES.items()}  # noqa: RUF012
    what = "language model"

    def config(self, name: str) -> dict[str, Any]:
        return sizes.config(name)

    def parts(self, name: str, seq: int) -> Module:
        from partita.recipes.mixture.model import example, factory

        return factory(name), example(seq)


@hookimpl
def partita_recipe() -> Mixture:
    return Mixture()


@hookimpl
def partita_module(model: str, seq: int | None) -> Module | None:
    return Mixture().module(model, seq)


@hookimpl
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """The whole context unless a sequence is asked for; a longer one is a ModelError."""
    if model not in sizes.SIZES:
        return None
    context = sizes.SIZES[model].context
    if seq is not None and not 1 <= seq <= context:
        raise ModelError(f"seq={seq}: {model} has {context} learned positions; any seq from 1 to {context} works")
    from partita.recipes.installed import require_torch

    require_torch(model)
    import torch

    from partita.plugins.capture_torch import capture_module
    from partita.recipes.mixture.model import example, factory

    inputs = example(seq or context)(samples)
    return capture_module(factory(model), inputs, name=model, dtype=getattr(torch, dtype)).graph
