"""The multi-modal transformer as a plugin: its names can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.recipes.branched import BranchedRecipe
from partita.recipes.multimodal.sizes import SIZES
from partita.recipes.recipe import Module

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor


class Multimodal(BranchedRecipe):
    """The recipe behind the names multimodal-tiny and multimodal-4x8."""

    names = tuple(SIZES)
    samples = "made-up scenes of several modalities"
    what = "multi-modal transformer"
    sizes = SIZES

    def parts(self, name: str, dtype: torch.dtype) -> Module:
        from partita.recipes.multimodal.model import example, factory

        return factory(name), example(name, dtype)

    def drawn(self, name: str, dtype: torch.dtype, seed: int) -> Callable[[int, int], dict[str, Tensor]]:
        from partita.recipes.multimodal.scenes import Scenes

        return Scenes(SIZES[name], dtype, seed).batch


RECIPE = Multimodal()
partita_recipe, partita_module, partita_capture = RECIPE.partita_recipe, RECIPE.partita_module, RECIPE.partita_capture
