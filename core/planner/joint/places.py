"""Where stages of each shape can begin, and how their groups of devices lie there.

Devices are dealt out in their order; inside a stage those of the axis ``tensor`` are neighbours. A *variant* is a shape
whose groups lie so: all that its prices ask of a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from partita.cluster.model import Cluster
from partita.planner.joint.space import Family, Shape


@dataclass(frozen=True)
class Variant:
    """``tensor_crosses``: a group of the axis tensor has devices of several nodes, ``data_crosses``: one of the copies,
    ``crosses``: the whole stage."""

    shape: Shape
    tensor_crosses: bool
    data_crosses: bool

    @property
    def crosses(self) -> bool:
        return self.tensor_crosses or self.data_crosses


@dataclass(frozen=True)
class Places:
    """``of``: [K, U], the variant of a shape that begins at a unit, −1 where none can. ``crosses``: [U + 1]."""

    variants: tuple[Variant, ...]
    of: np.ndarray
    crosses: np.ndarray


def places(cluster: Cluster, family: Family) -> Places:
    """The places of a family's shapes on a cluster."""
    nodes = np.array(cluster.node_of)
    numbers: dict[Variant, int] = {}
    found = np.full((len(family.shapes), family.units), -1)

    @cache
    def crossing(dp: int, tp: int, first: int) -> tuple[bool, bool]:
        grid = nodes[first : first + dp * tp].reshape(dp, tp)
        return bool((grid != grid[:, :1]).any()), bool((grid != grid[:1]).any())

    for k, shape in enumerate(family.shapes):
        for unit in range(family.units - shape.devices // family.unit + 1):
            variant = Variant(shape, *crossing(shape.dp, shape.tp, unit * family.unit))
            found[k, unit] = numbers.setdefault(variant, len(numbers))
    used = nodes[: family.unit * family.units].reshape(family.units, family.unit)
    crosses = np.zeros(family.units + 1, dtype=np.int64)
    if family.stages is None:
        # Which devices of two stages of any widths talk to each other isn't known here: the nearest ones say it.
        crosses[1:-1] = used[1:, 0] != used[:-1, -1]
    else:
        crosses[1:-1] = (used[1:] != used[:-1]).any(axis=1)
    return Places(tuple(numbers), found, crosses)
