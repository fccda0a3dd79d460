"""Where stages of each shape can begin, and how their groups of devices lie there.

Devices are dealt out in their order; inside a stage those of the axis ``tensor`` are neighbours. A *variant* is a shape
whose groups lie so: all that its prices ask of a place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import prod

import numpy as np

from partita.cluster.model import Cluster
from partita.cluster.placement import beside
from partita.planner.joint.space import Family, Shape


@dataclass(frozen=True)
class Lies:
    """How the groups along some axes of a stage lie: over several nodes, and with so many members in each of these."""

    crosses: bool
    beside: int


ALONE = Lies(False, 1)


@dataclass(frozen=True)
class Variant:
    """A shape, and how its groups lie, along each set of its axes. ``makeup``: on which nodes they stand
    (``Cluster.makeup``)."""

    shape: Shape
    groups: tuple[tuple[frozenset[str], Lies], ...]
    makeup: frozenset[tuple[int, int]]

    def along(self, axes: Iterable[str]) -> Lies:
        """How the groups along those of the axes lie that the shape has; of single devices where it has none."""
        there = frozenset(axes) & {name for name, _ in self.shape.axes}
        return next((lies for names, lies in self.groups if names == there), ALONE)


@dataclass(frozen=True)
class Places:
    """``of``: [K, U], the variant of a shape that begins at a unit, −1 where none can. ``crosses``: [U + 1].
    ``devices``: of each variant, those of a stage that is one."""

    variants: tuple[Variant, ...]
    devices: tuple[range, ...]
    of: np.ndarray
    crosses: np.ndarray


def places(cluster: Cluster, family: Family, begin: int = 0) -> Places:
    """The places of a family's shapes on a cluster's devices from ``begin`` on."""
    nodes = np.array(cluster.node_of)
    numbers: dict[Variant, int] = {}
    devices: list[range] = []
    found = np.full((len(family.shapes), family.units), -1)

    @cache
    def lying(
        axes: tuple[tuple[str, int], ...], first: int
    ) -> tuple[tuple[tuple[frozenset[str], Lies], ...], frozenset[tuple[int, int]]]:
        sizes = [size for _, size in axes]
        grid = nodes[first : first + prod(sizes)].reshape(sizes)
        groups = []
        for count in range(1, len(axes) + 1):
            for varied in combinations(range(len(axes)), count):
                size = prod(sizes[at] for at in varied)
                each = np.moveaxis(grid, varied, range(-count, 0)).reshape(-1, size)
                lies = Lies(bool((each != each[:, :1]).any()), beside(each))
                groups.append((frozenset(axes[at][0] for at in varied), lies))
        return tuple(groups), cluster.makeup(range(first, first + prod(sizes)))

    for k, shape in enumerate(family.shapes):
        for unit in range(family.units - shape.devices // family.unit + 1):
            first = begin + unit * family.unit
            variant = Variant(shape, *lying(shape.axes, first))
            if variant not in numbers:
                numbers[variant] = len(numbers)
                devices.append(range(first, first + shape.devices))
            found[k, unit] = numbers[variant]
    used = nodes[begin : begin + family.unit * family.units].reshape(family.units, family.unit)
    crosses = np.zeros(family.units + 1, dtype=np.int64)
    if family.stages is None:
        # Which devices of two stages of any widths talk to each other isn't known here: the nearest ones say it.
        crosses[1:-1] = used[1:, 0] != used[:-1, -1]
    else:
        crosses[1:-1] = (used[1:] != used[:-1]).any(axis=1)
    return Places(tuple(numbers), tuple(devices), found, crosses)
