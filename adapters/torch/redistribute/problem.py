"""From what a user writes to the types of an array: meshes, layouts, and the shape of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from partita.adapters.torch.redistribute.groups import adopt
from partita.adapters.torch.redistribute.messages import told_by_all
from partita.errors import InputError
from partita.redistribution.array_type import ArrayType
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh
from partita.redistribution.spelling import read_layout

# More dims than a tensor can have: 64.
_DIMS = 65


def mesh_of(mesh: Mesh | DeviceMesh | str) -> Mesh:
    """A mesh whose devices are ranks; a text's are 0, 1, …. InputError for a rank that this job doesn't have.

    The axes of a DeviceMesh without names are ``axis0``, ``axis1``, ….
    """
    if isinstance(mesh, str):
        mesh = Mesh.parse(mesh)
    elif not isinstance(mesh, Mesh):
        adopt(mesh)
        names = mesh.mesh_dim_names or [f"axis{index}" for index in range(mesh.ndim)]
        mesh = Mesh(tuple(zip(names, mesh.shape, strict=True)), tuple(mesh.mesh.flatten().tolist()))
    ranks = dist.get_world_size()
    if max(mesh.devices) >= ranks:
        raise InputError(
            f'the mesh "{mesh}" has device {max(mesh.devices)}, but this job has {ranks} '
            f"{'ranks' if ranks > 1 else 'rank'}, numbered from 0"
        )
    return mesh


def types_of(
    tensor: Tensor, layouts: tuple[Layout | str, Layout | str], meshes: tuple[Mesh, Mesh], shape: Sequence[int] | None
) -> tuple[ArrayType, ArrayType]:
    """The types before and after. Without ``shape`` the ranks of the meshes tell each other the shapes that they hold.

    InputError where layouts, meshes and shapes don't fit each other.
    """
    told = None if shape is not None else _told(tensor, meshes)
    if shape is not None:
        dims = len(shape)
    else:
        assert told is not None
        dims = len(told[meshes[0].devices[0]])
    before, after = (
        layout if isinstance(layout, Layout) else read_layout(layout, mesh, dims)
        for layout, mesh in zip(layouts, meshes, strict=True)
    )
    if told is not None:
        shape = _whole_shape(told, before, meshes[0])
    assert shape is not None
    return ArrayType(tuple(shape), before, meshes[0]), ArrayType(tuple(shape), after, meshes[1])


def _told(tensor: Tensor, meshes: tuple[Mesh, Mesh]) -> dict[int, tuple[int, ...]]:
    """The shape of the tensor of each rank of the meshes."""
    ranks = sorted({*meshes[0].devices, *meshes[1].devices})
    mine = torch.zeros(_DIMS, dtype=torch.int64)
    mine[: tensor.dim() + 1] = torch.tensor([tensor.dim(), *tensor.shape])
    rows = told_by_all(mine.to(tensor.device), ranks)
    return {
        rank: tuple(sizes[:count]) for rank, (count, *sizes) in zip(ranks, (row.tolist() for row in rows), strict=True)
    }


def _whole_shape(told: dict[int, tuple[int, ...]], layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    """The shape of the array of which devices hold these in a layout."""
    shapes = [told[device] for device in mesh.devices]
    if any(len(shape) != len(layout.dims) for shape in shapes):
        raise InputError(f'layout "{layout}" has {len(layout.dims)} entries; the ranks hold {_said(told, mesh)}')
    # Along the axes that cut a dim, from the first device: what they hold follows each other.
    shape = tuple(
        sum(shapes[place][dim] for place in sorted(mesh.groups(axes)[0])) if axes else shapes[0][dim]
        for dim, axes in enumerate(layout.dims)
    )
    kind = ArrayType(shape, layout, mesh)
    if any(kind.local_shape(place) != found for place, found in enumerate(shapes)):
        raise InputError(
            f'the ranks hold {_said(told, mesh)}: no array has these in the layout "{layout}" on the mesh "{mesh}". '
            "A dim that an axis doesn't divide is cut into equal pieces but for the last, as torch.chunk does it"
        )
    return shape


def _said(told: dict[int, tuple[int, ...]], mesh: Mesh) -> str:
    shown = [f"{list(told[device])} (rank {device})" for device in mesh.devices[:8]]
    return ", ".join(shown) + (f" and {len(mesh.devices) - 8} more" if len(mesh.devices) > 8 else "")
