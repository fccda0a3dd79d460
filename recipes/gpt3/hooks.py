"""GPT-3 as a plugin: its names can be planned and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from partita.hooks import hookimpl
from partita.recipes.gpt3 import sizes

if TYPE_CHECKING:
    from partita.graph import Graph


class Gpt3:
    """The recipe behind the names gpt3-tiny to gpt3-175b."""

    names = tuple(sizes.SIZES)

    def config(self, name: str) -> dict[str, Any]:
        return sizes.config(name)

    def run(self, name: str, options: Sequence[str]) -> int:
        from partita.recipes.gpt3.run import main

        return main(name, options)


@hookimpl
def partita_recipe() -> Gpt3:
    return Gpt3()


@hookimpl
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """Any of the sizes, at the whole context unless a sequence is asked for."""
    if model not in sizes.SIZES:
        return None
    from partita.plugins.capture_huggingface import capture_config

    length = sizes.SIZES[model].context if seq is None else seq
    return capture_config(sizes.config(model), samples=samples, seq=length, dtype=dtype, name=model)
