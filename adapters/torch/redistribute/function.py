"""``partita.redistribute``: a tensor's pieces from one layout to another, as a function that torch differentiates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh

from partita.adapters.torch.redistribute.execute import execute
from partita.adapters.torch.redistribute.problem import mesh_of, types_of
from partita.cluster.model import Cluster
from partita.redistribution.array_type import ArrayType
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh
from partita.redistribution.search import redistribution


def redistribute(
    tensor: Tensor, from_layout: Layout | str, to_layout: Layout | str, mesh: Mesh | DeviceMesh | str, *,
    to_mesh: Mesh | DeviceMesh | str | None = None, shape: Sequence[int] | None = None, cluster: Cluster | None = None,
) -> Tensor:  # fmt: skip
    """What this rank holds of an array in another layout.

    ``tensor`` is what it holds in the first, on ``mesh``, whose devices are ranks. The second is on ``to_mesh``, where
    that is another one. ``shape`` is that of the whole array; without it, the ranks tell each other what they hold. The
    steps are those that take the least time on ``cluster``, by default one node. All ranks of both meshes call this
    alike. A rank that isn't on the first mesh gives an empty tensor of the dtype, on its device; one that isn't on the
    second gets an empty tensor. Where nothing has to be sent, the result may share memory with the tensor.

    The derivative is the transposed map of all ranks' arrays together: of what lies in copies, each rank's gradient is
    a part of a sum, and of a sum the gradients are copies. So the gradient of a tensor in copies has to be added up
    over them, as in data parallelism. All ranks must go backward through their results, empty ones included.

    InputError where a layout can't be read, or where layouts, meshes and tensors don't fit each other.
    """
    meshes = mesh_of(mesh), mesh_of(mesh if to_mesh is None else to_mesh)
    if not any(dist.get_rank() in one.place for one in meshes):
        return tensor.new_empty(0)
    source, target = types_of(tensor, (from_layout, to_layout), meshes, shape)
    return Redistribute.apply(tensor, source, target, cluster)


class Redistribute(Function):
    """From one type of an array to another; backward, from the second's adjoint type to the first's."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, source: ArrayType, target: ArrayType, cluster: Cluster | None) -> Tensor:
        ctx.types, ctx.cluster, ctx.shape = (source, target), cluster, tensor.shape
        steps = [priced.step for priced in redistribution(source, target, tensor.dtype.itemsize, cluster).steps]
        found = execute(steps, source, target, tensor)
        return tensor.new_empty(0) if found is None else found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        source, target = ctx.types
        found = Redistribute.apply(gradient, adjoint(target), adjoint(source), ctx.cluster)
        return found if found.shape == ctx.shape else gradient.new_zeros(ctx.shape), None, None, None


def adjoint(kind: ArrayType) -> ArrayType:
    """The type of the gradient of an array: copies have parts of a sum, and parts of a sum have copies."""
    return kind.with_layout(Layout(kind.layout.dims, kind.replicated))
