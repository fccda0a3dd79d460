"""Differentiable collectives over the devices of one axis, and the two ops that work on a cut vocabulary.

Each has its transpose as backward pass. A dim that is cut may consist of several equal ``parts``, each of which is cut:
a device then has a piece of every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from partita.adapters.torch.wires import Group


class Enter(Function):
    """Identity; the gradient is summed over the group: a whole value is read by ops that each work on a piece."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        ctx.group.sum(gradient)
        return gradient, None


class Sum(Function):
    """The sum of a partial value over the group; the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        value = value.contiguous().clone()
        group.sum(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def pieces_of(value: Tensor, dim: int, parts: int, count: int) -> list[Tensor]:
    """What each of ``count`` devices has of the value; what is missing in the last ones is zero."""
    size = value.shape[dim]
    each = -(-size // (parts * count)) * parts
    if each * count > size:
        # Only a dim of one part is ever padded.
        rest = list(value.shape)
        rest[dim] = each * count - size
        value = torch.cat([value, value.new_zeros(rest)], dim=dim)
    if parts == 1:
        return list(value.split(each, dim=dim))
    split = value.unflatten(dim, (parts, count, -1))
    return [split.select(dim + 1, index).flatten(dim, dim + 1) for index in range(count)]


def put_together(pieces: Sequence[Tensor], dim: int, parts: int) -> Tensor:
    """The value of which the devices have these pieces, padding included."""
    if parts == 1:
        return torch.cat(list(pieces), dim=dim)
    split = [piece.unflatten(dim, (parts, -1)) for piece in pieces]
    return torch.cat(split, dim=dim + 1).flatten(dim, dim + 1)


class Gather(Function):
    """The whole value, ``size`` long in ``dim``, from the pieces; each gets its part of the gradient, padding none."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, dim: int, parts: int, size: int, group: Group) -> Tensor:
        ctx.at, ctx.group = (dim, parts), group
        return put_together(group.gather(piece), dim, parts).narrow(dim, 0, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return pieces_of(gradient, *ctx.at, ctx.group.size)[ctx.group.rank], None, None, None, None


class GatherEntered(Gather):
    """The same, where each device has only a part of the gradient: each gets its piece of the sum of the parts."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.group.scatter_sum(pieces_of(gradient, *ctx.at, ctx.group.size)), None, None, None, None


class Slice(Function):
    """Each device's piece of a whole value; the gradient's pieces are put together."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, parts: int, group: Group) -> Tensor:
        ctx.at, ctx.group = (dim, parts), group
        return pieces_of(value, dim, parts, group.size)[group.rank].contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return put_together(ctx.group.gather(gradient), *ctx.at), None, None, None


class Scatter(Slice):
    """The same of the sum of a partial value."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, parts: int, group: Group) -> Tensor:
        ctx.at, ctx.group = (dim, parts), group
        return group.scatter_sum(pieces_of(value, dim, parts, group.size))


class Exchange(Function):
    """Pieces of one dim for pieces of another; each is given as (dim, parts)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, source: tuple[int, int], target: tuple[int, int], group: Group) -> Tensor:
        ctx.source, ctx.target, ctx.group = source, target, group
        return put_together(group.exchange(pieces_of(value, *target, group.size)), *source)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        back = ctx.group.exchange(pieces_of(gradient, *ctx.source, ctx.group.size))
        return put_together(back, *ctx.target), None, None, None


def vocabulary_embedding(weight: Tensor, ids: Tensor, padding: int | None, group: Group) -> Tensor:
    """Rows ``ids`` of a table of which each rank holds the next ``weight.shape[0]`` rows: [..., h], whole on all ranks.

    ``padding`` is a row that gets no gradient, or None.
    """
    start = group.rank * weight.shape[0]
    local = ids - start
    elsewhere = (local < 0) | (local >= weight.shape[0])
    here = padding - start if padding is not None and 0 <= padding - start < weight.shape[0] else None
    rows = functional.embedding(local.masked_fill(elsewhere, 0), weight, padding_idx=here)
    return Sum.apply(rows.masked_fill(elsewhere.unsqueeze(-1), 0.0), group)


class _VocabularyCrossEntropy(Function):
    """Per-token loss from logits of which each rank holds some columns; padding columns count as minus infinity."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, real: int, group: Group) -> Tensor:
        width = logits.shape[-1]
        start = group.rank * width
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits.clone()
        logits[..., max(0, real - start) :] = float("-inf")
        top = logits.max(dim=-1).values
        group.largest(top)
        exponent = (logits - top.unsqueeze(-1)).exp_()
        total = exponent.sum(dim=-1)
        local = targets - start
        elsewhere = (local < 0) | (local >= width)
        local = local.masked_fill(elsewhere, 0)
        picked = (logits.gather(-1, local.unsqueeze(-1)).squeeze(-1) - top).masked_fill(elsewhere, 0.0)
        both = torch.stack([total, picked])
        group.sum(both)
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
    logits: Tensor, targets: Tensor, *, real: int, ignore_index: int, reduction: str, group: Group
) -> Tensor:
    """Cross entropy over a cut vocabulary of ``real`` words: logits [m, local], targets [m]; a scalar, on all ranks."""
    ignored = targets == ignore_index
    losses = _VocabularyCrossEntropy.apply(logits, targets.masked_fill(ignored, 0), real, group)
    return reduce_losses(losses, ignored, reduction)


def reduce_losses(losses: Tensor, ignored: Tensor, reduction: str) -> Tensor:
    """Sum or mean of the losses that are not ignored."""
    total = losses.masked_fill(ignored, 0.0).sum()
    return total if reduction == "sum" else total / (~ignored).sum()
