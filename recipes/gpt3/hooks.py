"""GPT-3 as a plugin: its names can be planned and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partita.errors import PlanError
from partita.hooks import hookimpl
from partita.recipes.gpt3 import sizes
from partita.recipes.gpt3.text import load_text
from partita.recipes.recipe import Files, Module, TrainedRecipe, Workload

if TYPE_CHECKING:
    import torch

    from partita.graph import Graph
    from partita.plan import Plan


class Gpt3(TrainedRecipe):
    """The recipe behind the names gpt3-tiny to gpt3-175b."""

    names = tuple(sizes.SIZES)
    samples = "a text"
    counted = "tokens"
    files = {"text": "A file to learn from. Default: Python's documentation."}  # noqa: RUF012

    def config(self, name: str) -> dict[str, Any]:
        return sizes.config(name)

    def check(self, plan: Plan, where: str, files: Files) -> None:
        if plan.seq is None:
            raise PlanError(f"{where}: the plan has no sequence length; it isn't one of a GPT-3")
        load_text(files["text"], plan.seq)

    def workload(self, name: str, *, seq: int | None, dtype: torch.dtype, seed: int, files: Files) -> Workload:
        from partita.recipes.gpt3.model import example, factory
        from partita.recipes.gpt3.samples import Samples

        assert seq is not None  # check() has seen to it
        return Workload(factory(name), example(seq), Samples(load_text(files["text"], seq), seq, seed).batch)


@hookimpl
def partita_recipe() -> Gpt3:
    return Gpt3()


@hookimpl
def partita_module(model: str, seq: int | None) -> Module | None:
    if model not in sizes.SIZES:
        return None
    from partita.recipes.gpt3.model import example, factory

    return factory(model), example(sizes.SIZES[model].context if seq is None else seq)


@hookimpl
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """Any of the sizes, at the whole context unless a sequence is asked for."""
    if model not in sizes.SIZES:
        return None
    from partita.plugins.capture_huggingface import capture_config

    length = sizes.SIZES[model].context if seq is None else seq
    return capture_config(sizes.config(model), samples=samples, seq=length, dtype=dtype, name=model)
