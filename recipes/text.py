"""A recipe of a causal language model that learns from the bytes of a text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from partita.errors import PlanError
from partita.recipes.gpt3.text import load_text
from partita.recipes.recipe import Files, Module, TrainedRecipe, Workload

if TYPE_CHECKING:
    import torch

    from partita.plan import Plan


class TextRecipe(TrainedRecipe):
    """``contexts`` are the longest sequence of each of its names; ``what`` it is, in a message."""

    samples = "a text"
    counted = "tokens"
    files: ClassVar[Mapping[str, str]] = {"text": "A file to learn from. Default: Python's documentation."}
    contexts: ClassVar[Mapping[str, int]]
    what: ClassVar[str]

    @abstractmethod
    def parts(self, name: str, seq: int) -> Module:
        """What builds the model of that name, and its arguments with so many tokens."""

    def check(self, plan: Plan, where: str, files: Files) -> None:
        if plan.seq is None:
            raise PlanError(f"{where}: the plan has no sequence length; it isn't one of a {self.what}")
        load_text(files["text"], plan.seq)

    def workload(self, name: str, *, seq: int | None, dtype: torch.dtype, seed: int, files: Files) -> Workload:
        from partita.recipes.gpt3.samples import Samples

        assert seq is not None  # check() has seen to it
        model, example = self.parts(name, seq)
        return Workload(model, example, Samples(load_text(files["text"], seq), seq, seed).batch)

    def module(self, name: str, seq: int | None) -> Module | None:
        """``parts`` of one of its names, at the whole context unless a sequence is asked for; None for other names."""
        if name not in self.contexts:
            return None
        return self.parts(name, self.contexts[name] if seq is None else seq)
