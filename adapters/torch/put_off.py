"""Linear layers whose weight gradients are put off: the backward turn computes the gradients of inputs alone, the
weight turn the rest (Qi et al., 2023, "Zero bubble pipeline parallelism", section 3).

Only parameters themselves are put off; a weight that something else made (a tied table turned round, a gathered one)
has its gradient at once. Biases and norms are small: theirs are never put off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

PutOff = list[Callable[[], None]]


class _Product(Function):
    """``value @ weight`` of value [..., k], weight [k, n], or [n, k] where it is ``turned``. The weight's gradient is
    left in the list."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, turned: bool, put_off: PutOff) -> Tensor:
        ctx.save_for_backward(value, weight)
        ctx.turned, ctx.put_off = turned, put_off
        return value @ (weight.t() if turned else weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        value, weight = ctx.saved_tensors
        turned = ctx.turned

        def compute() -> None:
            left, right = value.reshape(-1, value.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
            with torch.no_grad():
                found = right.t() @ left if turned else left.t() @ right
                weight.grad = found if weight.grad is None else weight.grad.add_(found)

        ctx.put_off.append(compute)
        back = gradient @ (weight if turned else weight.t()) if ctx.needs_input_grad[0] else None
        return back, None, None, None


def product(value: Tensor, weight: Tensor, turned: bool, put_off: PutOff | None) -> Tensor:
    """``value @ weight``, or of a weight [out, in] (``turned``) ``value @ weight.T``."""
    if put_off is None or not (weight.is_leaf and weight.requires_grad):
        return value @ (weight.t() if turned else weight)
    found: Tensor = _Product.apply(value, weight, turned, put_off)
    return found
