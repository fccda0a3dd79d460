"""A recipe whose model has branches side by side, captured from its module; its names fix the shapes of its inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from partita.errors import ModelError, PlanError, nearest
from partita.recipes.recipe import Files, Module, TrainedRecipe, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from partita.graph import Graph
    from partita.plan import Plan


class BranchedRecipe(TrainedRecipe):
    """``sizes`` are dataclasses by the names of the recipe; ``what`` it is, in a message."""

    counted = "samples"
    what: ClassVar[str]
    sizes: ClassVar[Mapping[str, Any]]

    @abstractmethod
    def parts(self, name: str, dtype: torch.dtype) -> Module:
        """What builds the model of that name, and its arguments for a number of samples, floats of ``dtype``."""

    @abstractmethod
    def drawn(self, name: str, dtype: torch.dtype, seed: int) -> Callable[[int, int], dict[str, Tensor]]:
        """The global batch of a step, of so many samples: the same on every rank, however it is divided."""

    def config(self, name: str) -> dict[str, Any]:
        """The fields of one of the sizes; ModelError with the nearest names for any other."""
        if name not in self.sizes:
            raise ModelError(f'there is no {self.what} "{name}".{nearest(name, self.sizes)}')
        return asdict(self.sizes[name])

    def check(self, plan: Plan, where: str, files: Files) -> None:
        if plan.seq is not None:
            raise PlanError(f"{where}: the plan has a sequence length ({plan.seq}); it isn't one of a {self.what}")

    def workload(self, name: str, *, seq: int | None, dtype: torch.dtype, seed: int, files: Files) -> Workload:
        return Workload(*self.parts(name, dtype), self.drawn(name, dtype, seed))

    def module(self, name: str) -> Module | None:
        """``parts`` in fp32 of one of its names; None for other names."""
        if name not in self.sizes:
            return None
        import torch

        return self.parts(name, torch.float32)

    def graph(self, name: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
        """Of one of its names, None for others. ModelError for a sequence length, and without torch."""
        if name not in self.sizes:
            return None
        if seq is not None:
            raise ModelError(f"{name}: its name fixes the shapes of its inputs; leave out --seq {seq}")
        from partita.recipes.installed import require_torch

        require_torch(name)
        import torch

        from partita.plugins.capture_torch import capture_module

        build, example = self.parts(name, getattr(torch, dtype))
        return capture_module(build, example(samples), name=name, dtype=getattr(torch, dtype)).graph
