"""A model like DLRM as a plugin: its names can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.hooks import hookimpl
from partita.recipes.branched import BranchedRecipe
from partita.recipes.dlrm.sizes import SIZES
from partita.recipes.recipe import Module

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from partita.graph import Graph


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


@hookimpl
def partita_recipe() -> Dlrm:
    return Dlrm()


@hookimpl
def partita_module(model: str, seq: int | None) -> Module | None:
    return Dlrm().module(model)


@hookimpl
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """Any of the sizes. Asking for a sequence length is a ModelError."""
    return Dlrm().graph(model, samples, seq, dtype)
