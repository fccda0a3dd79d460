"""DTensor's own planners, asked what they would do. Nothing is communicated and no process group is needed.

torch has two. The *greedy* one changes one mesh axis after the other and is what ``DTensor.redistribute`` goes by. It
knows one order of axes in a dim, that of the mesh. The *graph search* takes the path of least cost; DTensor goes by it
for other orders, and for all under ``use_min_cost_redistribution_plan``. Each step of either changes one mesh axis.

The network that they plan for is flat: where devices are CPUs, torch takes each for a host of its own. Where a user has
made flattened meshes, DTensor puts one collective in the place of several alike; that is left out here, and makes a
difference to the bytes of all-reduces alone. Uneven parts are padded by DTensor, which isn't counted either.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, perm

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor._redistribute import DTensorRedistributePlanner, _TransformInfo
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from partita.redistribution.array_type import ArrayType
from partita.redistribution.mesh import Mesh
from partita.redistribution.split import plain
from partita.redistribution.steps import Step, all_gather, all_reduce, all_to_all, mask, reduce_scatter, slice_

# The graph search looks at most of the layouts that there are, at about a thousand in a second.
MOST_LAYOUTS = 10_000
DTYPES = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64, 16: torch.complex128}


def planned(source: ArrayType, target: ArrayType, item_bytes: int) -> list[tuple[str, tuple[Step, ...]]]:
    """The steps of each planner that can state the redistribution, by the planner's name.

    Neither can between two meshes, or for elements of a width that no dtype has; nor can the greedy one make a sum of
    what is sharded. The graph search isn't asked where its answer would take more than about ten seconds. The steps are
    on the mesh without axes of size 1: DTensor does nothing along those.
    """
    if source.mesh != target.mesh or item_bytes not in DTYPES:
        return []
    mesh = device_mesh(source.mesh)
    before, after = specified(source, mesh, item_bytes), specified(target, mesh, item_bytes)
    # A planner remembers what it was asked before, so each question gets a new one.
    found = {}
    if all(DTensorSpec.is_default_device_order(order) for order in (before.shard_order, after.shard_order)):
        planner = DTensorRedistributePlanner(mesh, before.tensor_meta)
        found["DTensor greedy"] = planner.generate_greedy_transform_infos(before, after)
    if layouts(len(source.mesh.axes), len(source.shape)) <= MOST_LAYOUTS:
        planner = DTensorRedistributePlanner(mesh, before.tensor_meta)
        found["DTensor graph search"] = planner.generate_graph_based_transform_infos(before, after, source.shape)
    return [
        (name, _steps(source, transforms))
        for name, transforms in found.items()
        if all(_possible(*transform.src_dst_placements) for transform in transforms)
    ]


def layouts(axes: int, dims: int) -> int:
    """How many layouts there are: some of the axes, in some order, dealt out to the dims. Sums aren't counted."""
    if dims == 0:
        return 1
    return sum(perm(axes, used) * comb(used + dims - 1, dims - 1) for used in range(axes + 1))


def device_mesh(mesh: Mesh) -> DeviceMesh:
    """The mesh as torch's, seen from its first device."""
    places = torch.arange(len(mesh.devices)).view([size for _, size in mesh.axes])
    return DeviceMesh("cpu", places, mesh_dim_names=tuple(mesh.sizes), _init_backend=False, _rank=0)


def specified(kind: ArrayType, mesh: DeviceMesh, item_bytes: int) -> DTensorSpec:
    """The type as DTensor's: a placement for each axis of the mesh, and the order of the axes that cut a dim."""
    number = {name: index for index, name in enumerate(kind.mesh.sizes)}
    placements: list[Placement] = [Replicate()] * len(number)
    for axis in kind.layout.partial:
        placements[number[axis]] = Partial("sum")
    for dim, axes in enumerate(kind.layout.dims):
        for axis in axes:
            placements[number[axis]] = Shard(dim)
    order = tuple(
        ShardOrderEntry(dim, tuple(number[axis] for axis in axes)) for dim, axes in enumerate(kind.layout.dims) if axes
    )
    like = torch.empty(kind.shape, dtype=DTYPES[item_bytes], device="meta")
    return DTensorSpec(mesh, tuple(placements), TensorMeta(like.shape, like.stride(), like.dtype), order)


def _possible(before: Placement, after: Placement) -> bool:
    """DTensor has no operation from a shard to a sum; its planner says so only when it is run."""
    return not (before.is_shard() and after.is_partial())


def _steps(source: ArrayType, transforms: Sequence[_TransformInfo]) -> tuple[Step, ...]:
    names = list(source.mesh.sizes)
    here, steps = plain(source), []
    for transform in transforms:
        axis = names[transform.mesh_dim]
        if source.mesh.sizes[axis] > 1:
            steps.append(_step(here, axis, *transform.src_dst_placements))
            here = steps[-1].after
    return tuple(steps)


def _step(here: ArrayType, axis: str, before: Placement, after: Placement) -> Step:
    if isinstance(before, Shard):
        assert here.layout.dims[before.dim][-1] == axis, "a shard inside of this one would have to move along"
        if isinstance(after, Shard):
            return all_to_all(here, before.dim, after.dim)
        return all_gather(here, before.dim)
    if isinstance(before, Partial):
        return reduce_scatter(here, (axis,), after.dim) if isinstance(after, Shard) else all_reduce(here, (axis,))
    return slice_(here, axis, after.dim) if isinstance(after, Shard) else mask(here, axis)
