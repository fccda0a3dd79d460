"""Where the gradients of a call go: they are computed within it, or when its results get theirs, and kept until the
loop's backward asks for them. Then they reach the parameters as those of any loss do, scaled by what comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partita.adapters.torch.begin import Batch
from partita.adapters.torch.stage import Code, StageModule


class Looking:
    """An engine for the turns of a call, without gradients."""

    averages = False

    def __init__(self, stage: StageModule):
        self.stage = stage

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        return self.stage(batch, inputs, key, code)

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        raise AssertionError("nothing learns here")

    def reduce(self, stage: int) -> None:
        raise AssertionError("a call has turns alone")

    update = reduce


class Keeping(Looking):
    """An engine for the turns of a call, which adds up the gradients of ``parameters`` apart from ``.grad``.

    So the framework's hooks see one gradient a call, at the moment when the loop's own backward runs. In 16 bits they
    are added up in 32. ``factor`` is the gradient of the losses (a loss scale).
    """

    averages = True

    def __init__(self, stage: StageModule, parameters: Sequence[nn.Parameter], factor: float = 1.0):
        super().__init__(stage)
        self.parameters = parameters
        self.factor = factor
        self.kept: list[Tensor | None] = [None] * len(parameters)
        self.open = True

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        starts = [
            torch.full_like(out, self.factor) if g is None else g for out, g in zip(outputs, gradients, strict=True)
        ]
        found = torch.autograd.grad(outputs, [*leaves, *self.parameters], starts, allow_unused=True)
        for leaf, gradient in zip(leaves, found, strict=False):
            leaf.grad = gradient
        for index, gradient in enumerate(found[len(leaves) :]):
            if gradient is not None:
                before = self.kept[index]
                wide = gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient
                # A new tensor: autograd's own may be a view of another parameter's.
                self.kept[index] = wide if before is None else before + wide

    def require_open(self) -> None:
        """RuntimeError, as torch's own for a graph that was freed, where the gradients were taken before."""
        if not self.open:
            raise RuntimeError("the gradients of this call were taken before: backward works once for each call")

    def take(self, scale: Tensor | float) -> list[Tensor]:
        """The gradients times ``scale`` ÷ factor, once: they are the receiver's from then on."""
        self.require_open()
        kept, self.kept, self.open = self.kept, [], False
        found = []
        for index, parameter in enumerate(self.parameters):
            gradient, kept[index] = kept[index], None
            found.append(
                torch.zeros_like(parameter)
                if gradient is None
                else (gradient * (scale / self.factor)).to(parameter.dtype)
            )
        return found


class Kept(torch.autograd.Function):
    """A loss whose gradients exist already: its backward hands them to the parameters, times its own gradient."""

    @staticmethod
    def forward(ctx: Any, keeping: Keeping, value: Tensor, *parameters: Tensor) -> Tensor:
        ctx.keeping = keeping
        return value.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.keeping.take(scale))


class Shown(torch.autograd.Function):
    """The loss of all ranks in the place of this rank's share of it, which gets ``factor`` times its gradient."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, value: Tensor, factor: float) -> Tensor:
        ctx.factor, ctx.dtype = factor, local.dtype
        return value.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        return (scale * ctx.factor).to(ctx.dtype), None, None


class Results(torch.autograd.Function):
    """A call's results, from which the loop makes its own loss. ``back`` takes their gradients and returns those of the
    parameters."""

    @staticmethod
    def forward(ctx: Any, back: Callable[[Sequence[Tensor]], list[Tensor]], count: int, *tensors: Tensor) -> Any:
        ctx.back, ctx.count = back, count
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *[None] * ctx.count, *ctx.back(gradients))
