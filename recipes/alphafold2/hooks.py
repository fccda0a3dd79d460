"""AlphaFold2 as a plugin: its names can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partita.errors import ModelError, PlanError
from partita.hooks import hookimpl
from partita.recipes.alphafold2 import sizes
from partita.recipes.recipe import Files, Module, TrainedRecipe, Workload

if TYPE_CHECKING:
    import torch

    from partita.graph import Graph
    from partita.plan import Plan


class AlphaFold2(TrainedRecipe):
    """The recipe behind the names alphafold2-tiny to alphafold2-128-1024-512-512x384."""

    names = tuple(sizes.SIZES)
    samples = "made-up alignments"
    counted = "proteins"

    def config(self, name: str) -> dict[str, Any]:
        return sizes.config(name)

    def check(self, plan: Plan, where: str, files: Files) -> None:
        if plan.seq is not None:
            raise PlanError(f"{where}: the plan has a sequence length ({plan.seq}); it isn't one of an AlphaFold2")

    def workload(self, name: str, *, seq: int | None, dtype: torch.dtype, seed: int, files: Files) -> Workload:
        from partita.recipes.alphafold2.alignments import Alignments
        from partita.recipes.alphafold2.model import example, factory

        return Workload(factory(name), example(name), Alignments(sizes.SIZES[name], seed).batch)


@hookimpl
def partita_recipe() -> AlphaFold2:
    return AlphaFold2()


@hookimpl
def partita_module(model: str, seq: int | None) -> Module | None:
    if model not in sizes.SIZES:
        return None
    from partita.recipes.alphafold2.model import example, factory

    return factory(model), example(model)


@hookimpl
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """Any of the sizes. Residues and sequences are the size's own: asking for a sequence length is a ModelError."""
    if model not in sizes.SIZES:
        return None
    if seq is not None:
        size = sizes.SIZES[model]
        raise ModelError(
            f"{model} reads {size.sequences} sequences of {size.residues} residues, which its name fixes; "
            f"leave out --seq {seq}"
        )
    from partita.recipes.installed import require_torch

    require_torch(model)
    from partita.recipes.alphafold2.capture import capture

    return capture(model, samples, dtype)
