"""Where DeepSpeed's optimizers keep a parameter's master weights and state: the one place that knows their insides.

A *slot* is a flat interval of a parameter of this rank, and where it lies in a tensor that the base optimizer updates.
ZeRO has cut and joined these tensors; without ZeRO each is a parameter, or its copy of higher precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor, nn

from partita.errors import InputError


@dataclass(frozen=True)
class Slot:
    """Elements ``start`` to ``start + count`` of a parameter laid flat are ``owner.view(-1)[offset:offset + count]``.

    ``group``: the number of the optimizer's group that the owner is in.
    """

    start: int
    count: int
    owner: Tensor
    offset: int
    group: int

    def of(self, tensor: Tensor) -> Tensor:
        """The slot's elements of a tensor that has the owner's shape."""
        return tensor.view(-1).narrow(0, self.offset, self.count)


def base_optimizer(engine: DeepSpeedEngine) -> Any:
    """The torch optimizer inside."""
    return engine.basic_optimizer or engine.optimizer


def slots(engine: DeepSpeedEngine, trained: Mapping[str, nn.Parameter]) -> dict[str, Slot]:
    """The slot of every trained parameter of which this rank updates something, by name.

    InputError for an optimizer of DeepSpeed's whose insides aren't known here.
    """
    optimizer = engine.optimizer
    if engine.zero_nvme_offload_optimizer():
        raise InputError(
            "the optimizer's state is offloaded to NVMe, where a resharded checkpoint can't be loaded: offload it to "
            "the CPU for the load, and save"
        )
    found: dict[str, Slot] = {}
    names = {id(parameter): name for name, parameter in trained.items()}
    if isinstance(optimizer, (DeepSpeedZeroOptimizer, BF16_Optimizer)):
        zero = isinstance(optimizer, DeepSpeedZeroOptimizer)
        owners = optimizer.single_partition_of_fp32_groups if zero else optimizer.fp32_groups_flat_partition
        for name, parameter in trained.items():
            mapping = getattr(parameter, "_hp_mapping", None)
            if mapping is not None:
                group, here, there = mapping.param_group_index, mapping.lp_fragment_address, mapping.hp_fragment_address
                found[name] = Slot(here.start, here.numel, owners[group], there.start, group)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        for name, parameter in trained.items():
            sub_group, offset, each = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start = each * dist.get_rank(group=parameter.ds_process_group)
            count = min(each, parameter.ds_numel - start)
            if count > 0:
                owner, group = optimizer.fp32_partitioned_groups_flat[sub_group], optimizer.sub_group_to_group_id
                found[name] = Slot(start, count, owner, offset, group[sub_group])
    elif isinstance(optimizer, FP16_UnfusedOptimizer):
        for group, (halves, owners) in enumerate(zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)):
            for half, owner in zip(halves, owners, strict=True):
                if id(half) in names:
                    found[names[id(half)]] = Slot(0, half.numel(), owner, 0, group)
    elif isinstance(optimizer, FP16_Optimizer):
        for group, (halves, owner) in enumerate(zip(optimizer.fp16_groups, optimizer.fp32_groups_flat, strict=True)):
            offset = 0
            for half in halves:
                if id(half) in names:
                    found[names[id(half)]] = Slot(0, half.numel(), owner, offset, group)
                offset += half.numel()
    elif optimizer is base_optimizer(engine):
        for group, options in enumerate(optimizer.param_groups):
            for parameter in options["params"]:
                if id(parameter) in names:
                    found[names[id(parameter)]] = Slot(0, parameter.numel(), parameter, 0, group)
    else:
        raise InputError(
            f"DeepSpeed's {type(optimizer).__name__} can't be filled from a resharded checkpoint; its own checkpoints "
            "of this plan can be loaded"
        )
    return found
