"""The plain torch engine: gradients by autograd, averaged over data-parallel copies, applied by a torch optimizer.

Where the program divides state over copies (``zero``), each copy applies its chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from partita.adapters.torch.begin import Batch
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.stage import Code, StageModule


class TorchEngine:
    """Adds up what a stage's copies computed (each loss counts its share of the global batch), clips, steps."""

    def __init__(
        self,
        stages: Mapping[int, StageModule],
        groups: Groups,
        optimizers: Mapping[int, torch.optim.Optimizer],
        clip_norm: float | None = None,
    ):
        self.stages = stages
        self.groups = groups
        self.optimizers = optimizers
        self.clip_norm = clip_norm
        self.clipped = False

    averages = False

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        return self.stages[code.piece.stage](batch, inputs, key, code)

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        torch.autograd.backward(list(outputs), list(gradients))

    def reduce(self, stage: int) -> None:
        self.clipped = False
        for name, parameter in self.stages[stage].updated.items():
            divided = self.stages[stage].divided(name)
            if divided is not None:
                divided.collect()
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            for axis in self.stages[stage].piece.partial.get(name, ()):
                self.groups.axes[stage][axis].sum(parameter.grad)
            if divided is None and stage in self.groups.data:
                self.groups.data[stage].sum(parameter.grad)

    def update(self, stage: int) -> None:
        if self.clip_norm is not None and not self.clipped:
            clip_gradients(self.stages, self.groups, self.clip_norm)
            self.clipped = True
        if optimizer := self.optimizers.get(stage):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for name in self.stages[stage].trained:
            if (divided := self.stages[stage].divided(name)) is not None:
                divided.spread()


def optimizers(
    stages: Mapping[int, StageModule], make: Callable[[Mapping[str, nn.Parameter]], torch.optim.Optimizer]
) -> dict[int, torch.optim.Optimizer]:
    """One for each stage that has something to train, made from its parameters by name.

    Where the program divides the optimizer's state these are flat chunks of parameters: the optimizer must update each
    element by itself (as Adam does), and what it treats differently must go by name, not by shape.
    """
    return {number: make(stage.updated) for number, stage in stages.items() if stage.trained}


def global_norm(stages: Mapping[int, StageModule], groups: Groups) -> float:
    """The gradient norm of the whole model, each parameter once: shared ones by their owner, whole ones by rank 0.

    Collective over the devices of one copy of the model, or of all where copies have chunks, or stages have unlike
    numbers of copies: then of what the copies have alike the first one counts.
    """
    of_all = not groups.alike or any(stage.division is not None for stage in stages.values())
    total = torch.zeros((), dtype=torch.float64, device=next(iter(stages.values())).context.device)
    for number, stage in stages.items():
        again = of_all and number in groups.data and groups.data[number].rank > 0
        for name, parameter in stage.updated.items():
            if parameter.grad is not None and stage.counts(name) and not (again and stage.divided(name) is None):
                total += parameter.grad.double().pow(2).sum()
    if of_all:
        groups.everyone.sum(total)
    elif groups.model is not None:
        groups.model.sum(total)
    return float(total.sqrt())


def clip_gradients(stages: Mapping[int, StageModule], groups: Groups, largest: float) -> float:
    """Scale this rank's gradients so that the whole model's norm is at most ``largest``; the norm before."""
    norm = global_norm(stages, groups)
    if norm > largest:
        for stage in stages.values():
            for parameter in stage.updated.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(largest / (norm + 1e-6))
    return norm
