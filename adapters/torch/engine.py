"""The plain torch engine: gradients by autograd, averaged over data-parallel copies, applied by a torch optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.begin import Batch
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.stage import Code, StageModule


class TorchEngine:
    """Adds up what a stage's copies computed (each loss counts its share of the global batch), clips, steps."""

    def __init__(
        self, stage: StageModule, groups: Groups, optimizer: torch.optim.Optimizer, clip_norm: float | None = None
    ):
        self.stage = stage
        self.groups = groups
        self.optimizer = optimizer
        self.clip_norm = clip_norm

    averages = False

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        return self.stage(batch, inputs, key, code)

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        torch.autograd.backward(list(outputs), list(gradients))

    def reduce(self) -> None:
        for parameter in self.stage.trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self.groups.data is not None:
                dist.all_reduce(parameter.grad, group=self.groups.data)

    def update(self) -> None:
        if self.clip_norm is not None:
            clip_gradients(self.stage, self.groups, self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def global_norm(stage: StageModule, groups: Groups) -> float:
    """The gradient norm of the whole model, each parameter once: shared ones by their owner, whole ones by rank 0.

    Collective over the devices of one copy of the model.
    """
    device = stage.context.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for name, parameter in stage.trained.items():
        cut = stage.piece.parameters[name] is not None
        if parameter.grad is not None and (cut or stage.context.rank == 0):
            total += parameter.grad.double().pow(2).sum()
    if groups.model is not None:
        dist.all_reduce(total, group=groups.model)
    return float(total.sqrt())


def clip_gradients(stage: StageModule, groups: Groups, largest: float) -> float:
    """Scale this rank's gradients so that the whole model's norm is at most ``largest``; the norm before."""
    norm = global_norm(stage, groups)
    if norm > largest:
        for parameter in stage.trained.values():
            if parameter.grad is not None:
                parameter.grad.mul_(largest / (norm + 1e-6))
    return norm
