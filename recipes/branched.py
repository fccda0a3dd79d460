"""A recipe whose model has branches side by side, captured from its module; its names fix the shapes of its inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from partita.errors import ModelError, PlanError, nearest
from partita.hooks import hookimpl
from partita.recipes.recipe import Files, Module, TrainedRecipe, Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    import torch
    from torch import Tensor

    from partita.graph import Graph
    from partita.plan import Plan


class BranchedRecipe(TrainedRecipe):
    """``sizes`` are dataclasses by the names of the recipe; ``what`` it is, in a message. It is the plugin itself: a
    module of hooks binds its three."""

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

    @hookimpl
    def partita_recipe(self) -> Self:
        return self

    @hookimpl
    def partita_module(self, model: str) -> Module | None:
        """``parts`` in fp32 of one of its names; None for other names."""
        if model not in self.sizes:
            return None
        import torch

        return self.parts(model, torch.float32)

    @hookimpl
    def partita_capture(self, model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
        """Of one of its names, None for others. ModelError for a sequence length, and without torch."""
        if model not in self.sizes:
            return None
        if seq is not None:
            raise ModelError(f"{model}: its name fixes the shapes of its inputs; leave out --seq {seq}")
        from partita.recipes.installed import require_torch

        require_torch(model)
        import torch

        from partita.plugins.capture_torch import capture_module

        build, example = self.parts(model, getattr(torch, dtype))
        return capture_module(build, example(samples), name=model, dtype=getattr(torch, dtype)).graph
