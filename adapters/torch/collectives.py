"""Differentiable sums over the devices of a tensor-parallel group, and the two ops that work on a cut vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


class Enter(Function):
    """Identity; the gradient is summed over the group: a whole value is read by ops that each work on a piece."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Sum(Function):
    """The sum of a partial value over the group; the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        value = value.contiguous().clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Gather(Function):
    """The whole value, ``size`` long in ``dim``, from the pieces; each gets its part of the gradient, padding none."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, dim: int, size: int, group: dist.ProcessGroup) -> Tensor:
        piece = piece.contiguous()
        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, piece, group=group)
        ctx.dim, ctx.start, ctx.length = dim, dist.get_rank(group) * piece.shape[dim], piece.shape[dim]
        return torch.cat(pieces, dim=dim).narrow(dim, 0, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        stop = min(gradient.shape[ctx.dim], ctx.start + ctx.length)
        start = min(ctx.start, stop)
        part = gradient.narrow(ctx.dim, start, stop - start)
        if stop - start < ctx.length:
            shape = list(part.shape)
            shape[ctx.dim] = ctx.length - (stop - start)
            part = torch.cat([part, part.new_zeros(shape)], dim=ctx.dim)
        return part, None, None, None


def vocabulary_embedding(weight: Tensor, ids: Tensor, padding: int | None, group: dist.ProcessGroup) -> Tensor:
    """Rows ``ids`` of a table of which each rank holds the next ``weight.shape[0]`` rows: [..., h], whole on all ranks.

    ``padding`` is a row that gets no gradient, or None.
    """
    start = dist.get_rank(group) * weight.shape[0]
    local = ids - start
    elsewhere = (local < 0) | (local >= weight.shape[0])
    here = padding - start if padding is not None and 0 <= padding - start < weight.shape[0] else None
    rows = functional.embedding(local.masked_fill(elsewhere, 0), weight, padding_idx=here)
    return Sum.apply(rows.masked_fill(elsewhere.unsqueeze(-1), 0.0), group)


class _VocabularyCrossEntropy(Function):
    """Per-token loss from logits of which each rank holds some columns; padding columns count as minus infinity."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, real: int, group: dist.ProcessGroup) -> Tensor:
        width = logits.shape[-1]
        start = dist.get_rank(group) * width
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits.clone()
        logits[..., max(0, real - start) :] = float("-inf")
        top = logits.max(dim=-1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        exponent = (logits - top.unsqueeze(-1)).exp_()
        total = exponent.sum(dim=-1)
        local = targets - start
        elsewhere = (local < 0) | (local >= width)
        local = local.masked_fill(elsewhere, 0)
        picked = (logits.gather(-1, local.unsqueeze(-1)).squeeze(-1) - top).masked_fill(elsewhere, 0.0)
        both = torch.stack([total, picked])
        dist.all_reduce(both, group=group)
        total, picked = both
        ctx.save_for_backward(exponent.div_(total.unsqueeze(-1)), local, elsewhere)
        return total.log() - picked

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        probability, local, elsewhere = ctx.saved_tensors
        result = probability.clone()
        ones = torch.ones_like(local, dtype=result.dtype).masked_fill(elsewhere, 0.0).unsqueeze(-1)
        result.scatter_add_(-1, local.unsqueeze(-1), -ones)
        return result * gradient.unsqueeze(-1), None, None, None


def vocabulary_cross_entropy(
    logits: Tensor, targets: Tensor, *, real: int, ignore_index: int, reduction: str, group: dist.ProcessGroup
) -> Tensor:
    """Cross entropy over a cut vocabulary of ``real`` words: logits [m, local], targets [m]; a scalar, on all ranks."""
    ignored = targets == ignore_index
    losses = _VocabularyCrossEntropy.apply(logits, targets.masked_fill(ignored, 0), real, group)
    return reduce_losses(losses, ignored, reduction)


def reduce_losses(losses: Tensor, ignored: Tensor, reduction: str) -> Tensor:
    """Sum or mean of the losses that are not ignored."""
    total = losses.masked_fill(ignored, 0.0).sum()
    return total if reduction == "sum" else total / (~ignored).sum()
