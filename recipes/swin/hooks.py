"""Swin as a plugin: its names can be planned and run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from partita.errors import InputError, PlanError
from partita.hooks import hookimpl
from partita.recipes.recipe import Files, Module, TrainedRecipe, Workload
from partita.recipes.swin import sizes

if TYPE_CHECKING:
    import torch

    from partita.graph import Graph
    from partita.plan import Plan


class Swin(TrainedRecipe):
    """The recipe behind the names swin-tiny to swin-56l."""

    names = tuple(sizes.SIZES)
    samples = "handwritten digits"
    counted = "images"

    def config(self, name: str) -> dict[str, Any]:
        return sizes.config(name)

    def check(self, plan: Plan, where: str, files: Files) -> None:
        if plan.seq is not None:
            raise PlanError(f"{where}: the plan has a sequence length ({plan.seq}); it isn't one of a Swin")
        if find_spec("sklearn") is None:
            raise InputError(
                f"{plan.model} learns from the digits that come with scikit-learn, which is not installed here; "
                "pip install scikit-learn brings them"
            )

    def workload(self, name: str, *, seq: int | None, dtype: torch.dtype, seed: int, files: Files) -> Workload:
        from partita.recipes.swin.digits import Digits
        from partita.recipes.swin.model import example, factory

        return Workload(factory(name), example(name, dtype), Digits(sizes.SIZES[name].image, dtype, seed).batch)


@hookimpl
def partita_recipe() -> Swin:
    return Swin()


@hookimpl
def partita_module(model: str, seq: int | None) -> Module | None:
    if model not in sizes.SIZES:
        return None
    import torch

    from partita.recipes.swin.model import example, factory

    return factory(model), example(model, torch.float32)


@hookimpl
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """Any of the sizes; their images have no sequence, and asking for one is an error."""
    if model not in sizes.SIZES:
        return None
    from partita.plugins.capture_huggingface import capture_config

    return capture_config(sizes.config(model), samples=samples, seq=seq, dtype=dtype, name=model)
