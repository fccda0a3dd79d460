"""The initial weights as the user's module has them, the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

# A tensor is summed up in pieces: in 64 bits a whole embedding and its weights would take several times its own memory.
CHUNK_ELEMENTS = 2**22


class ModelWeights:
    """A module's own parameters, by canonical name; those that ZeRO-3 has divided are gathered one at a time."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]):
        self.parameters = parameters

    def dense(self, name: str) -> Tensor:
        parameter = self.parameters[name]
        if not hasattr(parameter, "ds_id"):
            return parameter.detach()
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()


def same_everywhere(tensors: Mapping[str, Tensor], device: torch.device) -> list[str]:
    """Give every rank the tensors of rank 0, as DeepSpeed does with a module; the names of those that differed.

    Compared by two sums each, so that nothing is sent where all ranks were seeded alike. Collective over all ranks.
    """
    whole = {name: tensor for name, tensor in tensors.items() if not hasattr(tensor, "ds_id") and tensor.numel()}
    if not whole:
        return []
    sums = torch.stack([_sums(tensor) for tensor in whole.values()]).to(device)
    least, most = sums.clone(), sums.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    equal = ((least == most) | (least.isnan() & most.isnan())).all(dim=1).tolist()
    differing = [name for name, same in zip(whole, equal, strict=True) if not same]
    for name in differing:
        data = whole[name].detach()
        there = data.to(device).contiguous()
        dist.broadcast(there, 0)
        data.copy_(there)
    return differing


def _sums(tensor: Tensor) -> Tensor:
    values = tensor.detach().flatten()
    sums = torch.zeros(2, dtype=torch.float64, device=values.device)
    for start in range(0, len(values), CHUNK_ELEMENTS):
        chunk = values[start : start + CHUNK_ELEMENTS].double()
        # A weight for each place: two tensors with the same elements in another order differ.
        places = torch.arange(start + 1, start + len(chunk) + 1, dtype=torch.float64, device=values.device)
        sums += torch.stack([chunk.sum(), chunk @ places.remainder_(8191.0)])
    return sums.cpu()
