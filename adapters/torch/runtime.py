"""One rank of a program: a step takes this copy's micro-batches, runs the rank's queue once, and gives the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from partita.adapters.torch.begin import Batch, Beginning
from partita.adapters.torch.flush import Engine, Flush
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.stage import StageModule
from partita.spacetime.program import Place, Program, Task


class Runtime:
    """One rank of a program. ``step`` takes this copy's micro-batches and returns the loss of the global batch.

    ``buffers``: the model's, by name, that are saved with it. They are constants.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, StageModule],
        groups: Groups,
        *,
        device: torch.device,
        seed: int = 0,
        buffers: Mapping[str, Tensor] | None = None,
        observe: Callable[[Task], None] | None = None,
    ):
        self.program = program
        self.stages = stages
        self.groups = groups
        self.device = device
        self.seed = seed
        self.buffers = dict(buffers or {})
        self.observe = observe
        self.queue = program.queues[groups.rank]
        self.steps = 0
        self.beginning = Beginning(program, stages, groups, device)

    def step(self, batches: Iterator[Batch], engine: Engine) -> float:
        """Run the queue once. ``batches`` yields dicts of the model's inputs, one for each turn of the rank's stages:
        the samples of its copy (``program.share(rank)``).

        InputError, the same one on every rank, when a batch of any of them doesn't fit or no label counts.
        """
        micro, scale = self.beginning.take(batches)
        flush = Flush(self, engine, micro, [scale] * len(micro))
        flush.run(self.queue)
        self.steps += 1
        return self._total(flush.loss)

    def _total(self, loss: Tensor) -> float:
        """The loss of the global batch, the same on every rank."""
        stage = self.program.loss_stage
        counts = stage in self.stages and self.program.place(self.groups.rank, stage).tensor == 0
        total = loss if counts else torch.zeros_like(loss)
        self.groups.everyone.sum(total)
        return float(total)

    @property
    def stage(self) -> StageModule:
        """The stage of a rank that serves one. PlanError where it serves more."""
        return self.stages[self.place.stage]

    @property
    def place(self) -> Place:
        """The place of a rank that serves one stage. PlanError where it serves more."""
        return self.program.only_place(self.groups.rank)
