"""A DTensor in other placements by Partita's steps: the same as its own ``redistribute``, also from mesh to mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor.placement_types import _StridedShard

from partita.adapters.torch.redistribute.execute import execute
from partita.adapters.torch.redistribute.placements import to_layout, to_placements
from partita.adapters.torch.redistribute.problem import mesh_of
from partita.cluster.model import Cluster
from partita.errors import InputError, listed
from partita.redistribution.array_type import ArrayType
from partita.redistribution.search import redistribution


def redistribute_dtensor(
    dtensor: DTensor, placements: Sequence[Placement], device_mesh: DeviceMesh | None = None, *,
    cluster: Cluster | None = None,
) -> DTensor:  # fmt: skip
    """The DTensor in these placements, on its own mesh or another; a function that torch differentiates.

    It is what ``dtensor.redistribute(placements=placements)`` gives, by the steps that take the least time on
    ``cluster``, by default one node. Sums are the only partial values: InputError names another. All ranks of both
    meshes call this alike; one that isn't on a mesh has an empty local tensor there. A gradient is a DTensor in
    placements of its own; it comes back in those of ``dtensor``, but whole where ``dtensor`` is a sum.
    """
    _require_order_said(dtensor)
    mesh = dtensor.device_mesh if device_mesh is None else device_mesh
    # Read and written again, so that a negative dim is a positive one.
    names = mesh_of(mesh)
    return RedistributeDTensor.apply(dtensor, to_placements(to_layout(placements, names, dtensor.dim()), names), mesh,
                                     cluster)  # fmt: skip


class RedistributeDTensor(Function):
    """From a DTensor's placements to others; backward, from the gradient's own to the former, sums left out."""

    @staticmethod
    def forward(
        ctx: Any, dtensor: DTensor, placements: tuple[Placement, ...], mesh: DeviceMesh, cluster: Cluster | None
    ) -> DTensor:
        ctx.came = dtensor.placements, dtensor.device_mesh, cluster
        source, target = _type(dtensor, dtensor.placements, dtensor.device_mesh), _type(dtensor, placements, mesh)
        steps = [priced.step for priced in redistribution(source, target, dtensor.dtype.itemsize, cluster).steps]
        local = dtensor.to_local()
        found = execute(steps, source, target, local)
        return DTensor.from_local(
            local.new_empty(0) if found is None else found, mesh, placements, run_check=False,
            shape=dtensor.shape, stride=dtensor.stride(),
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[Tensor | None, ...]:
        placements, mesh, cluster = ctx.came
        parts = gradient.placements if gradient.device_mesh == mesh else [None] * mesh.ndim
        # Parts of a sum have one gradient, whole: it would only have to be added up again.
        whole = tuple(
            Replicate() if wanted.is_partial() and here != wanted else wanted
            for here, wanted in zip(parts, placements, strict=True)
        )
        return RedistributeDTensor.apply(gradient, whole, mesh, cluster), None, None, None


def _require_order_said(dtensor: DTensor) -> None:
    """torch can keep an order in which axes cut a dim beside the placements, where nobody sees it."""
    spec = dtensor._spec
    order = getattr(spec, "shard_order", None)
    if order is None or any(isinstance(placement, _StridedShard) for placement in dtensor.placements):
        return
    if tuple(order) != spec.compute_default_shard_order(dtensor.placements):
        said = "; ".join(f"dim {entry.tensor_dim} by the axes {listed(entry.mesh_dims)}" for entry in order)
        raise InputError(
            f"the DTensor's placements {tuple(map(str, dtensor.placements))} don't say in which order axes cut it: "
            f"{said}. The same with _StridedShard says it"
        )


def _type(dtensor: DTensor, placements: Sequence[Placement], mesh: DeviceMesh) -> ArrayType:
    names = mesh_of(mesh)
    return ArrayType(tuple(dtensor.shape), to_layout(placements, names, dtensor.dim()), names)
