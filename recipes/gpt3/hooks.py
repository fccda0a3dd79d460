"""GPT-3 as a plugin: its names can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partita.hooks import hookimpl
from partita.recipes.gpt3 import sizes
from partita.recipes.recipe import Module
from partita.recipes.text import TextRecipe

if TYPE_CHECKING:
    from partita.graph import Graph


class Gpt3(TextRecipe):
    """The recipe behind the names gpt3-tiny to gpt3-175b."""

    names = tuple(sizes.SIZES)
    contexts = {name: size.context for name, size in sizes.SIZES.items()}  # noqa: RUF012
    what = "GPT-3"

    def config(self, name: str) -> dict[str, Any]:
        return sizes.config(name)

    def parts(self, name: str, seq: int) -> Module:
        from partita.recipes.gpt3.model import example, factory

        return factory(name), example(seq)


@hookimpl
def partita_recipe() -> Gpt3:
    return Gpt3()


@hookimpl
def partita_module(model: str, seq: int | None) -> Module | None:
    return Gpt3().module(model, seq)


@hookimpl
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """Any of the sizes, at the whole context unless a sequence is asked for."""
    if model not in sizes.SIZES:
        return None
    from partita.plugins.capture_huggingface import capture_config

    length = sizes.SIZES[model].context if seq is None else seq
    return capture_config(sizes.config(model), samples=samples, seq=length, dtype=dtype, name=model)
