"""Linear layers whose weight gradients are put off: the backward turn computes the gradients of inputs alone, the
weight turn the rest (Qi et al., 2023, "Zero bubble pipeline parallelism", section 3).

Only parameters themselves are put off; a weight that something else made (a tied table turned round) has its gradient
at once. Biases and norms are small: theirs are never put off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

PutOff = list[Callable[[], None]]


class _Product(Function):
    """``value @ weight`` of value [..., k], weight [k, n], or [n, k] where it is ``turned``. The weight's gradient is
    left in the list, for ``add``."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, weight: Tensor, turned: bool, put_off: PutOff, add: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.save_for_backward(value, weight)
        ctx.turned, ctx.put_off, ctx.add = turned, put_off, add
        return value @ (weight.t() if turned else weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        value, weight = ctx.saved_tensors
        turned, add = ctx.turned, ctx.add

        def compute() -> None:
            left, right = value.reshape(-1, value.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
            with torch.no_grad():
                add(right.t() @ left if turned else left.t() @ right)

        ctx.put_off.append(compute)
        back = gradient @ (weight if turned else weight.t()) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None


def product(value: Tensor, weight: Tensor, turned: bool, put_off: PutOff | None) -> Tensor:
    """``value @ weight``, or of a weight [out, in] (``turned``) ``value @ weight.T``."""
    add = None if put_off is None else _adds(weight)
    if add is None:
        return value @ (weight.t() if turned else weight)
    found: Tensor = _Product.apply(value, weight, turned, put_off, add)
    return found


def _adds(weight: Tensor) -> Callable[[Tensor], None] | None:
    """What takes a gradient of a parameter, which knows it itself where that is divided. None for other weights."""
    if weight.is_leaf and weight.requires_grad:
        return partial(_add_to, weight)
    return getattr(weight, "add_gradient", None) if weight.requires_grad else None


def _add_to(weight: Tensor, found: Tensor) -> None:
    weight.grad = found if weight.grad is None else weight.grad.add_(found)
