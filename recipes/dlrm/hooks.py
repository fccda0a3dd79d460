"""A model like DLRM as a plugin: its names can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.recipes.branched import BranchedRecipe
from partita.recipes.dlrm.sizes import SIZES
from partita.recipes.recipe import Module

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor


class Dlrm(BranchedRecipe):
    """The recipe behind the names dlrm-tiny and dlrm-like."""

    names = tuple(SIZES)
    samples = "made-up clicks"
    what = "model like DLRM"
    sizes = SIZES

    def parts(self, name: str, dtype: torch.dtype) -> Module:
        from partita.recipes.dlrm.model import example, factory

        return factory(name), example(name, dtype)

    def drawn(self, name: str, dtype: torch.dtype, seed: int) -> Callable[[int, int], dict[str, Tensor]]:
        from partita.recipes.dlrm.clicks import Clicks

        return Clicks(SIZES[name], dtype, seed).batch


RECIPE = Dlrm()
partita_recipe, partita_module, partita_capture = RECIPE.partita_recipe, RECIPE.partita_module, RECIPE.partita_capture
