"""Where stages of each shape can begin, and how their groups of devices lie there.

Devices are dealt out in their order; inside a stage those of the axis ``tensor`` are neighbours. A *variant* is a shape
whose groups lie so: all that its prices ask of a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from partita.cluster.model import Cluster
from partita.cluster.placement import beside
from partita.planner.joint.space import Family, Shape


@dataclass(frozen=True)
class Lies:
    """How the groups along some axes of a stage lie: over several nodes, and with so many members in each of these."""

    crosses: bool
    beside: int


@dataclass(frozen=True)
class Variant:
    """A shape, and how its groups lie: those of the axis ``tensor``, those of the copies, all devices of the stage.
    ``makeup``: on which nodes they stand (``Cluster.makeup``)."""

    shape: Shape
    tensor: Lies
    data: Lies
    all: Lies
    makeup: frozenset[tuple[int, int]]


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
    def lying(dp: int, tp: int, first: int) -> tuple[Lies, Lies, Lies, frozenset[tuple[int, int]]]:
        grid = nodes[first : first + dp * tp].reshape(dp, tp)
        tensor, data, whole = (
            Lies(bool((groups != groups[:, :1]).any()), beside(groups))
            for groups in (grid, grid.T, grid.reshape(1, -1))
        )
        return tensor, data, whole, cluster.makeup(range(first, first + dp * tp))

    for k, shape in enumerate(family.shapes):
        for unit in range(family.units - shape.devices // family.unit + 1):
            first = unit * family.unit
            variant = Variant(shape, *lying(shape.dp, shape.tp, first))
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
