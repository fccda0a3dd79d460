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
    ``crosses``: the whole stage. ``makeup``: on which nodes they stand (``Cluster.makeup``)."""

    shape: Shape
    tensor_crosses: bool
    data_crosses: bool
    makeup: frozenset[tuple[int, int]]

    @property
    def crosses(self) -> bool:
        return self.tensor_crosses or self.data_crosses


@dataclass(frozen=True)
class Places:
    """``of``: [K, U], the variant of a shape that begins at a unit, −1 where none can. ``crosses``: [U + 1].
    ``devices``: of each variant, those of a stage that is one."""

    variants: tuple[Variant, ...]
    devices: tuple[range, ...]
    of: np.ndarray
    crosses: np.ndarray


def places(cluster: Cluster, family: Family) -> Places:
    """The places of a family's shapes on a cluster."""
    nodes = np.array(cluster.node_of)
    numbers: dict[Variant, int] = {}
    devices: list[range] = []
    found = np.full((len(family.shapes), family.units), -1)

    @cache
    def lies(dp: int, tp: int, first: int) -> tuple[bool, bool, frozenset[tuple[int, int]]]:
        grid = nodes[first : first + dp * tp].reshape(dp, tp)
        makeup = cluster.makeup(range(first, first + dp * tp))
        return bool((grid != grid[:, :1]).any()), bool((grid != grid[:1]).any()), makeup

    for k, shape in enumerate(family.shapes):
        for unit in range(family.units - shape.devices // family.unit + 1):
            first = unit * family.unit
            variant = Variant(shape, *lies(shape.dp, shape.tp, first))
            if variant not in numbers:
                numbers[variant] = len(numbers)
                devices.append(range(first, first + shape.devices))
            found[k, unit] = numbers[variant]
    used = nodes[: family.unit * family.units].reshape(family.units, family.unit)
    crosses = np.zeros(family.units + 1, dtype=np.int64)
    if family.stages is None:
        # Which devices of two stages of any widths talk to each other isn't known here: the nearest ones say it.
        crosses[1:-1] = used[1:, 0] != used[:-1, -1]
    else:
        crosses[1:-1] = (used[1:] != used[:-1]).any(axis=1)
    return Places(tuple(numbers), tuple(devices), found, crosses)
