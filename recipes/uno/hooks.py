"""A model like Uno as a plugin: its names can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.recipes.branched import BranchedRecipe
from partita.recipes.recipe import Module
from partita.recipes.uno.sizes import SIZES

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor


class Uno(BranchedRecipe):
    """The recipe behind the names uno-tiny and uno-like."""

    names = tuple(SIZES)
    samples = "made-up responses"
    what = "model like Uno"
    sizes = SIZES

    def parts(self, name: str, dtype: torch.dtype) -> Module:
        from partita.recipes.uno.model import example, factory

        return factory(name), example(name, dtype)

    def drawn(self, name: str, dtype: torch.dtype, seed: int) -> Callable[[int, int], dict[str, Tensor]]:
        from partita.recipes.uno.responses import Responses

        return Responses(SIZES[name], dtype, seed).batch


RECIPE = Uno()
partita_recipe, partita_module, partita_capture = RECIPE.partita_recipe, RECIPE.partita_module, RECIPE.partita_capture
