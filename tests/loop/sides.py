"""The two that run the same loop: a rank with DeepSpeed's engine and a plan, and one process of plain torch, which has
the batches of all ranks and computes in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tests.loop.models import Batch, exact, joined

LossOf = Callable[[Any, Batch], Tensor]


class Side(Protocol):
    """What a loop of a test is written against. Batches are always those of all ranks, in their order."""

    model: nn.Module
    ranks: int

    def call(self, parts: Sequence[Batch]) -> Any:
        """The model's output, whose loss is that of all ranks' batches."""

    def outside(self, parts: Sequence[Batch], loss_of: LossOf) -> tuple[Tensor, list[Tensor]]:
        """The model without labels, and ``loss_of(output, batch)``: what goes backward, and each rank's, or this one's.

        Ranks mean the average over all of them, which in one process is written out.
        """

    def told(self, parts: Sequence[Batch], counts: Sequence[Tensor]) -> Tensor:
        """The loss where the model is told, by each rank, how many tokens there are: the mean over ranks."""

    def look(self, parts: Sequence[Batch]) -> list[Any]:
        """Evaluation: every rank's output, or this rank's alone."""

    def backward(self, loss: Tensor) -> None: ...

    def step(self) -> None: ...

    def train_batch(self, steps: Sequence[Sequence[Batch]]) -> float:
        """One step on the batches of several calls."""

    def rates(self) -> list[float]:
        """The learning rate of every group."""


class Ranks:
    """This rank's side."""

    def __init__(self, engine: Any, rank: int, ranks: int, schedule: Any = None):
        self.engine, self.model, self.rank, self.ranks, self.schedule = engine, engine.module, rank, ranks, schedule

    def call(self, parts: Sequence[Batch]) -> Any:
        return self.engine(**parts[self.rank])

    def outside(self, parts: Sequence[Batch], loss_of: LossOf) -> tuple[Tensor, list[Tensor]]:
        loss = loss_of(self.engine(**unlabelled(parts[self.rank])), parts[self.rank])
        return loss, [loss]

    def told(self, parts: Sequence[Batch], counts: Sequence[Tensor]) -> Tensor:
        loss: Tensor = self.engine(**parts[self.rank], num_items_in_batch=counts[self.rank]).loss
        return loss

    def look(self, parts: Sequence[Batch]) -> list[Any]:
        self.engine.eval()
        with torch.no_grad():
            found = self.engine(**parts[self.rank])
        self.engine.train()
        return [found]

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> None:
        ends = self.engine.is_gradient_accumulation_boundary()
        self.engine.step()
        if ends and self.schedule is not None:
            self.schedule.step()

    def train_batch(self, steps: Sequence[Sequence[Batch]]) -> float:
        loss = self.engine.train_batch(iter([parts[self.rank] for parts in steps]))
        if self.schedule is not None:
            self.schedule.step()
        return float(loss)

    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.engine.optimizer.param_groups]


class One:
    """One process, with what DeepSpeed's engine is configured to do around the model."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: int, accumulation: int = 1,
        clip_norm: float | None = None, schedule: Any = None,
    ):  # fmt: skip
        self.model, self.optimizer, self.ranks, self.schedule = model, optimizer, ranks, schedule
        self.accumulation, self.clip_norm, self.calls = accumulation, clip_norm, 0

    def call(self, parts: Sequence[Batch]) -> Any:
        return self.model(**exact(joined(parts)))

    def outside(self, parts: Sequence[Batch], loss_of: LossOf) -> tuple[Tensor, list[Tensor]]:
        losses = [loss_of(self.model(**exact(unlabelled(part))), part) for part in parts]
        return torch.stack(losses).mean(), losses

    def told(self, parts: Sequence[Batch], counts: Sequence[Tensor]) -> Tensor:
        pairs = zip(parts, counts, strict=True)
        return torch.stack([self.model(**exact(part), num_items_in_batch=count).loss for part, count in pairs]).mean()

    def look(self, parts: Sequence[Batch]) -> list[Any]:
        self.model.eval()
        with torch.no_grad():
            found = [self.model(**exact(part)) for part in parts]
        self.model.train()
        return found

    def backward(self, loss: Tensor) -> None:
        (loss / self.accumulation).backward()

    def step(self) -> None:
        self.calls += 1
        if self.calls % self.accumulation:
            return
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.schedule is not None:
            self.schedule.step()

    def train_batch(self, steps: Sequence[Sequence[Batch]]) -> float:
        total = 0.0
        for parts in steps:
            loss = self.call(parts).loss
            total += float(loss) / len(steps)
            self.backward(loss)
            self.step()
        return total

    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


def unlabelled(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "labels"}
