"""DTensor's placements as layouts and back.

What a layout is in placements is said in ``partita.redistribution.placements``, as text; here are torch's objects. Sums
are the only partial values that a layout has.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh
from partita.redistribution.placements import read_placements, shards


def to_layout(placements: Sequence[Placement], mesh: Mesh, dims: int) -> Layout:
    """The layout of a tensor of that many dims. InputError names a placement that no layout is, such as ``P(avg)``."""
    return read_placements(",".join(str(placement) for placement in placements), mesh, dims)


def to_placements(layout: Layout, mesh: Mesh) -> tuple[Placement, ...]:
    """The placements of a layout, one an axis of the mesh."""
    found: dict[str, Placement] = dict.fromkeys(mesh.sizes, Replicate()) | dict.fromkeys(layout.partial, Partial("sum"))
    for axis, (dim, pieces) in shards(layout, mesh).items():
        found[axis] = Shard(dim) if pieces == 1 else _StridedShard(dim, split_factor=pieces)
    return tuple(found.values())
