"""The mixture of experts as a plugin: its name can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partita.errors import ModelError, PlanError
from partita.hooks import hookimpl
from partita.recipes.gpt3.text import load_text
from partita.recipes.mixture import sizes
from partita.recipes.recipe import Files, Module, TrainedRecipe, Workload

if TYPE_CHECKING:
    import torch

    from partita.graph import Graph
    from partita.plan import Plan


class Mixture(TrainedRecipe):
    """The recipe behind the name mixture-tiny. It learns from the bytes of a text, as GPT-3's do."""

    names = tuple(sizes.SIZES)
    samples = "a text"
    counted = "tokens"
    files = {"text": "A file to learn from. Default: Python's documentation."}  # noqa: RUF012

    def config(self, name: str) -> dict[str, Any]:
        return sizes.config(name)

    def check(self, plan: Plan, where: str, files: Files) -> None:
        if plan.seq is None:
            raise PlanError(f"{where}: the plan has no sequence length; it isn't one of a language model")
        load_text(files["text"], plan.seq)

    def workload(self, name: str, *, seq: int | None, dtype: torch.dtype, seed: int, files: Files) -> Workload:
        from partita.recipes.gpt3.samples import Samples
        from partita.recipes.mixture.model import example, factory

        assert seq is not None  # check() has seen to it
        return Workload(factory(name), example(seq), Samples(load_text(files["text"], seq), seq, seed).batch)


@hookimpl
def partita_recipe() -> Mixture:
    return Mixture()


@hookimpl
def partita_module(model: str, seq: int | None) -> Module | None:
    if model not in sizes.SIZES:
        return None
    from partita.recipes.mixture.model import example, factory

    return factory(model), example(sizes.SIZES[model].context if seq is None else seq)


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
