"""Megatron-core's tensor-parallel layers, called as a stage calls an op: with the inputs that they don't hold.

They are subclasses, not wrappers, so that parameters keep the names that they have in the model. Importing this module
imports Megatron-core. Nothing here calls torch.cuda, nor does Megatron in these layers when it initialises on the CPU
and leaves the filling of weights to us; so they run on any device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from torch import Tensor, nn

from partita.adapters.torch.collectives import reduce_losses, vocabulary_cross_entropy
from partita.adapters.torch.stage import Parameters
from partita.adapters.torch.wires import ProcessGroup


class Order(NamedTuple):
    """Where a layer finds value, weight and bias among what it is given; None: it has that itself, or there is none."""

    value: int
    weight: int | None
    bias: int | None

    def parts(self, given: tuple[Tensor, ...], bias: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(value, weight, bias), from what was given and the layer's own bias."""
        return (
            given[self.value],
            None if self.weight is None else given[self.weight],
            bias if self.bias is None else given[self.bias],
        )


class Column(ColumnParallelLinear):
    """A linear layer with its outputs cut: the local weight is [out / tp, in]. ``owns`` lacks a weight that is tied."""

    def __init__(self, shape: tuple[int, int], order: Order, owns: frozenset[str], parameters: Parameters):
        # The sum of the input's gradient is an op of its own in the piece ("enter"), once for all layers that read the
        # value; and the bias is added in forward, because Megatron gives it no gradient beside a frozen weight.
        with parameters.device:
            super().__init__(
                shape[1], shape[0] * parameters.group.size(), config=_config(parameters), init_method=nn.init.zeros_,
                bias="bias" in owns, gather_output=False, skip_bias_add=True, disable_grad_reduce=True,
                skip_weight_param_allocation="weight" not in owns, tp_group=parameters.group,
            )  # fmt: skip
        self.order = order

    def forward(self, *given: Tensor) -> Tensor:
        value, weight, bias = self.order.parts(given, self.bias)
        output, _ = super().forward(_flat(value), weight=weight)
        return _finish(output, value, bias)

    # Megatron's "extra state" is always empty: keep it out of checkpoints, whose names are the model's.
    get_extra_state = nn.Module.get_extra_state


class Row(RowParallelLinear):
    """A linear layer with its reduced dim cut: the local weight is [out, in / tp], the bias whole."""

    def __init__(self, shape: tuple[int, int], order: Order, owns: frozenset[str], parameters: Parameters):
        with parameters.device:
            super().__init__(
                shape[1] * parameters.group.size(), shape[0], config=_config(parameters), init_method=nn.init.zeros_,
                bias="bias" in owns, input_is_parallel=True, skip_bias_add=True, tp_group=parameters.group,
            )  # fmt: skip
        self.order = order

    def forward(self, *given: Tensor) -> Tensor:
        value, _, bias = self.order.parts(given, self.bias)
        output, _ = super().forward(_flat(value))
        return _finish(output, value, bias)

    get_extra_state = nn.Module.get_extra_state


class Embedding(VocabParallelEmbedding):
    """A table with its rows cut, those that pad it included. ``padding`` is a row that gets no gradient."""

    def __init__(self, shape: tuple[int, int], padding: int | None, parameters: Parameters):
        with parameters.device:
            super().__init__(
                shape[0] * parameters.group.size(), shape[1], config=_config(parameters), init_method=nn.init.zeros_,
                tp_group=parameters.group,
            )  # fmt: skip
        self.padding = padding

    def forward(self, ids: Tensor) -> Tensor:
        found = super().forward(ids)
        if self.padding is None:
            return found
        return torch.where((ids == self.padding).unsqueeze(-1), found.detach(), found)


class VocabularyLoss(nn.Module):
    """Cross entropy of logits [m, vocabulary / tp] and targets [m]: a scalar, the same on all ranks of the group.

    Columns from ``real`` on are padding and can't be chosen; targets equal to ``ignore`` count for nothing.
    """

    def __init__(self, real: int, ignore: int, reduction: str, group: dist.ProcessGroup):
        super().__init__()
        self.real = real
        self.ignore = ignore
        self.reduction = reduction
        self.group = group

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        if logits.dtype == torch.float64:
            # Megatron computes this loss in float32, whatever it is given. Who trains in float64 compares with one
            # device, and keeps all digits.
            group = ProcessGroup(self.group)
            return vocabulary_cross_entropy(
                logits, targets, real=self.real, ignore_index=self.ignore, reduction=self.reduction, group=group
            )
        # A copy in any case: Megatron subtracts the maximum in place.
        logits = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        columns = logits.shape[-1]
        logits[..., max(0, self.real - dist.get_rank(self.group) * columns) :] = torch.finfo(torch.float32).min
        ignored = targets == self.ignore
        with tensor_group(self.group):
            losses = vocab_parallel_cross_entropy(logits, targets.masked_fill(ignored, 0))
        return reduce_losses(losses, ignored, self.reduction)


@contextmanager
def tensor_group(group: dist.ProcessGroup) -> Iterator[None]:
    """Megatron's functions that take no group use this one inside.

    Megatron's own way to set it lays out all ranks in one fixed order, which a plan need not follow.
    """
    wanted: dict[str, Any] = {
        "_TENSOR_MODEL_PARALLEL_GROUP": group,
        "_MPU_TENSOR_MODEL_PARALLEL_RANK": None,
        "_MPU_TENSOR_MODEL_PARALLEL_WORLD_SIZE": None,
    }
    before = {name: getattr(parallel_state, name) for name in wanted}
    try:
        for name, value in wanted.items():
            setattr(parallel_state, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(parallel_state, name, value)


def _config(parameters: Parameters) -> ModelParallelConfig:
    """Empty parameters of the plan's dtype, on torch's current device: no more is meant by Megatron's "cpu" here."""
    return ModelParallelConfig(
        tensor_model_parallel_size=parameters.group.size(), params_dtype=parameters.dtype,
        use_cpu_initialization=True, perform_initialization=False, gradient_accumulation_fusion=False,
    )  # fmt: skip


def _flat(value: Tensor) -> Tensor:
    """[m, k]: Megatron's linear layers differentiate values of two or three dims only."""
    return value.reshape(-1, value.shape[-1])


def _finish(output: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    output = output.view(*value.shape[:-1], output.shape[-1])
    return output if bias is None else output + bias
