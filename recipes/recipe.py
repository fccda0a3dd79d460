"""What a recipe's folder gives: names and sizes for the planner; a model, an example and batches for those who train.

The process that plans and starts the ranks asks a recipe too, so nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from partita.plan import Plan

# The files that the user gave, by the name of their option; None for the recipe's own data.
Files = Mapping[str, Path | None]

# What builds a model, and its arguments by name for a number of samples.
Module = tuple[Callable[[], Any], Callable[[int], Mapping[str, Any]]]


class Workload(NamedTuple):
    """What is trained.

    ``model`` builds it, plain and whole; ``example`` gives keyword arguments of its forward for a number of samples,
    of which only shapes and dtypes count; ``batch(step, count)`` is a step's global batch of ``count`` samples, the
    same on every rank.
    """

    model: Callable[[], nn.Module]
    example: Callable[[int], dict[str, Tensor]]
    batch: Callable[[int, int], dict[str, Tensor]]


class TrainedRecipe(ABC):
    """A recipe that ``partita run`` trains. ``samples`` says what it learns from, and ``counted`` what a second counts.

    ``files`` are options for files of the user's to learn from, with the help of each.
    """

    names: ClassVar[Sequence[str]]
    samples: ClassVar[str]
    counted: ClassVar[str]
    files: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def config(self, name: str) -> dict[str, Any]:
        """The HuggingFace configuration of one of ``names``."""

    @abstractmethod
    def check(self, plan: Plan, where: str, files: Files) -> None:
        """PartitaError for a plan (read from ``where``) or files that can't be trained with, before any rank starts."""

    @abstractmethod
    def workload(self, name: str, *, seq: int | None, dtype: torch.dtype, seed: int, files: Files) -> Workload:
        """What a rank trains. Floating inputs are of ``dtype``; ``seed`` draws the samples."""

    def run(self, name: str, options: Sequence[str]) -> int:
        from partita.recipes.run import main

        return main(self, name, options)
