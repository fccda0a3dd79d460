"""What autograd keeps of a block, in the host's memory until its backward pass."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Packed = tuple[bool, Tensor, object]


def in_host_memory() -> saved_tensors_hooks:
    """A context: what is saved inside leaves the device, and comes back when its gradient is computed.

    Parameters stay, and so do values that came from other stages: they are held on the device anyway.
    """
    return saved_tensors_hooks(_pack, _unpack)


def _pack(tensor: Tensor) -> Packed:
    owner = tensor if tensor._base is None else tensor._base
    if owner.is_leaf and owner.requires_grad:
        return False, tensor, tensor.device
    # A copy, also where the device is the host: what is kept of the block is apart from what goes on.
    return True, tensor.detach().to("cpu", copy=True), tensor.device


def _unpack(packed: Packed) -> Tensor:
    away, tensor, device = packed
    return tensor.to(device) if away else tensor  # type: ignore[call-overload]
