"""One rank of a program: a step takes this copy's micro-batches, runs the rank's queue once, and gives the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.begin import Batch, Beginning
from partita.adapters.torch.flush import Engine, Flush
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.stage import StageModule
from partita.spacetime.program import Program, Task


class Runtime:
    """One rank of a program. ``step`` takes this copy's micro-batches and returns the loss of the global batch."""

    def __init__(
        self,
        program: Program,
        stage: StageModule,
        groups: Groups,
        *,
        device: torch.device,
        seed: int = 0,
        observe: Callable[[Task], None] | None = None,
    ):
        self.program = program
        self.stage = stage
        self.groups = groups
        self.device = device
        self.seed = seed
        self.observe = observe
        self.queue = program.queues[groups.rank]
        self.place = program.places[groups.rank]
        self.steps = 0
        self.beginning = Beginning(program, stage, groups, device)

    def step(self, batches: Iterator[Batch], engine: Engine) -> float:
        """Run the queue once. ``batches`` yields ``program.micro_batches`` dicts of the model's inputs.

        InputError, the same one on every rank, when a batch of any of them doesn't fit or no label counts.
        """
        micro, scale = self.beginning.take(batches)
        flush = Flush(self, engine, micro, [scale] * len(micro))
        flush.run(self.queue)
        self.steps += 1
        return self._total(flush.loss)

    def _total(self, loss: Tensor) -> float:
        """The loss of the global batch, the same on every rank."""
        total = loss if self.place.tensor == 0 else torch.zeros_like(loss)
        dist.all_reduce(total, group=self.groups.values)
        return float(total)
