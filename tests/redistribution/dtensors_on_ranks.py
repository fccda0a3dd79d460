"""What ranks do in the tests of DTensors; each function is called on all of them alike."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

import partita

MESHES = [(8,), (2, 4), (4, 2), (2, 2, 2)]
SHAPES = [(8, 8), (5, 10), (16, 3, 4), (7,), (1, 9), (0, 4)]


def some_layout(mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int], seed: int) -> DTensor:
    """A DTensor of whole numbers; the parts of a sum differ."""
    full = torch.randint(-9, 9, tuple(shape), generator=torch.Generator().manual_seed(seed)).double()
    placed = distribute_tensor(full, mesh, [Replicate() if p.is_partial() else p for p in placements])
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    part = [at for at, placement in zip(coordinate, placements, strict=True) if placement.is_partial()]
    local = placed.to_local() * (1 + sum(part))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def as_its_own(seed: int, count: int) -> int:
    """Values and gradients are those of ``DTensor.redistribute``, with the same placements."""
    random = Random(seed)
    meshes = {sizes: init_device_mesh("cpu", sizes) for sizes in MESHES}
    compared = 0
    for number in range(count):
        mesh, shape = meshes[random.choice(MESHES)], random.choice(SHAPES)
        cuts = [*map(Shard, range(len(shape)))]
        before = [random.choice([*cuts, Replicate(), Partial()]) for _ in range(mesh.ndim)]
        after = [random.choice([*cuts, Replicate()]) for _ in range(mesh.ndim)]
        given = some_layout(mesh, before, shape, number)
        mine, own = (given.detach().requires_grad_() for _ in range(2))
        wanted = own.redistribute(placements=after)
        found = partita.redistribute_dtensor(mine, after)
        gradient = some_layout(mesh, after, shape, 1000 + number)
        what = f"{number}: {shape} on {mesh}: {before} -> {after}"
        require_same(found, wanted, what)
        wanted.backward(gradient)
        found.backward(gradient)
        assert own.grad is not None
        assert mine.grad is not None
        require_same(mine.grad, own.grad, f"the gradient of {what}")
        compared += 1
    return compared


def require_same(found: DTensor, wanted: DTensor, what: str) -> None:
    assert (found.placements, found.shape, found.stride()) == (wanted.placements, wanted.shape, wanted.stride()), what
    assert found.device_mesh == wanted.device_mesh
    np.testing.assert_array_equal(found.to_local().detach(), wanted.to_local().detach(), err_msg=what)


def strided() -> list[list[float]]:
    """Rows 0 … 3 on (dp, tp) = (2, 2), cut by tp first, and then by dp first."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rows = torch.arange(4.0).reshape(4, 1)
    given = distribute_tensor(rows, mesh, [_StridedShard(0, split_factor=2), Shard(0)])
    found = partita.redistribute_dtensor(given, [Shard(0), Shard(0)])
    back = partita.redistribute_dtensor(found, [_StridedShard(0, split_factor=2), Shard(-2)])
    whole = partita.redistribute_dtensor(given, [Replicate(), Replicate()])
    return [tensor.to_local().flatten().tolist() for tensor in (given, found, back, whole)]


def strided_uneven() -> int:
    """Dims that axes don't divide are cut as torch cuts them, whatever the order of the axes."""
    mesh, compared = init_device_mesh("cpu", (2, 2)), 0
    for size in range(12):
        full = torch.arange(float(size))
        placements = [_StridedShard(0, split_factor=2), Shard(0)]
        given = distribute_tensor(full, mesh, [Replicate(), Replicate()])
        # Each cuts its own: what torch would send is padded, which it refuses to do here.
        wanted = distribute_tensor(full, mesh, placements, src_data_rank=None)
        require_same(partita.redistribute_dtensor(given, placements), wanted, f"{size} elements")
        compared += 1
    return compared


def average() -> str:
    """A sum isn't an average."""
    mesh = init_device_mesh("cpu", (2,))
    given = DTensor.from_local(torch.tensor([1.0 + 2 * dist.get_rank()]), mesh, [Partial()], run_check=False)
    try:
        partita.redistribute_dtensor(given, [Partial("avg")])
    except ValueError as error:
        return str(error)
    return "no error"


def hidden_order() -> str:
    """Axes that cut a dim in an order that torch keeps to itself."""
    mesh, order = init_device_mesh("cpu", (2, 2)), (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    meta = TensorMeta(torch.Size((4,)), (1,), torch.float32)
    given = DTensor(
        torch.zeros(1), DTensorSpec(mesh, (Shard(0), Shard(0)), meta, shard_order=order), requires_grad=False
    )
    try:
        partita.redistribute_dtensor(given, [Replicate(), Replicate()])
    except ValueError as error:
        return str(error)
    return "no error"


def between_meshes() -> tuple[np.ndarray, np.ndarray]:
    """(8, 8) from ranks 0 … 3, cut by rows, to ranks 4 and 5, cut by columns; and the gradient back."""
    here, there = DeviceMesh("cpu", [0, 1, 2, 3]), DeviceMesh("cpu", [4, 5])
    full = torch.arange(64.0).reshape(8, 8)
    rank = dist.get_rank()
    rows = full[2 * rank : 2 * rank + 2].clone() if rank < 4 else torch.empty(0)
    given = DTensor.from_local(rows, here, [Shard(0)], run_check=False, shape=full.shape, stride=full.stride())
    given.requires_grad_()
    found = partita.redistribute_dtensor(given, [Shard(1)], there)
    columns = full.flip(0)[:, 4 * (rank - 4) : 4 * (rank - 3)] if rank >= 4 else torch.empty(0)
    found.backward(
        DTensor.from_local(columns, there, [Shard(1)], run_check=False, shape=full.shape, stride=full.stride())
    )
    assert given.grad is not None
    return found.to_local().detach().numpy(), given.grad.to_local().numpy()
