"""The type of a distributed array: its shape and how it lies on which devices.

As in "Memory-efficient array redistribution through portable collective communication", section 2: a dim of size n of
which each device has c, sharded by the axes x and y, x first, prints as ``c{x,y}n``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from partita.errors import InputError
from partita.redistribution.chunks import chunk
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh


@dataclass(frozen=True)
class ArrayType:
    """An array of that shape in that layout on that mesh. InputError where they don't fit each other."""

    shape: tuple[int, ...]
    layout: Layout
    mesh: Mesh

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.layout.dims):
            raise InputError(
                f'layout "{self.layout}" has {len(self.layout.dims)} entries, the tensor {list(self.shape)} has '
                f"{len(self.shape)} dims"
            )
        for axis in (*self.layout.cutting, *self.layout.partial):
            if axis not in self.mesh.sizes:
                raise InputError(
                    f'layout "{self.layout}": the mesh has no axis "{axis}"; it has {", ".join(self.mesh.sizes)}'
                )

    @cached_property
    def boxes(self) -> np.ndarray:
        """What each place holds: half-open intervals, ``[places, dims, 2]``. Uneven dims are cut as ``Layout`` says."""
        places = len(self.mesh.devices)
        found = np.empty((places, len(self.shape), 2), dtype=np.int64)
        for dim, (size, axes) in enumerate(zip(self.shape, self.layout.dims, strict=True)):
            start = np.zeros(places, dtype=np.int64)
            stop = np.full(places, size, dtype=np.int64)
            for axis in axes:
                start, stop = chunk(start, stop, self.mesh.coordinates[axis], self.mesh.sizes[axis])
            found[:, dim, 0], found[:, dim, 1] = start, stop
        return found

    @cached_property
    def elements(self) -> np.ndarray:
        """How many elements each place holds, ``[places]``."""
        return (self.boxes[..., 1] - self.boxes[..., 0]).prod(axis=1)

    @cached_property
    def tiles(self) -> np.ndarray:
        """The number of each place's tile, ``[places]``: equal for replicas, and for the parts of a sum."""
        return self._index(self.layout.cutting)

    @cached_property
    def parts(self) -> np.ndarray:
        """Which addend of the sum each place holds, ``[places]``; 0 everywhere where there is no sum."""
        return self._index(self.layout.partial)

    @cached_property
    def largest(self) -> int:
        """Elements of the device that holds most."""
        # The device at the origin: chunks are ceil(n / k), and it has the first of each.
        return prod(int(stop - start) for start, stop in self.boxes[0])

    @cached_property
    def even(self) -> bool:
        """Whether every cut divides its dim."""
        return all(size % self.mesh.size(axes) == 0 for size, axes in zip(self.shape, self.layout.dims, strict=True))

    @property
    def replicated(self) -> tuple[str, ...]:
        """The axes along which devices hold the same."""
        used = {*self.layout.cutting, *self.layout.partial}
        return tuple(axis for axis in self.mesh.sizes if axis not in used)

    def local_shape(self, place: int = 0) -> tuple[int, ...]:
        """The shape of the array at a place of the mesh; the first has the largest."""
        return tuple(int(stop - start) for start, stop in self.boxes[place])

    def with_layout(self, layout: Layout) -> ArrayType:
        return replace(self, layout=layout)

    def _index(self, axes: tuple[str, ...]) -> np.ndarray:
        found = np.zeros(len(self.mesh.devices), dtype=np.int64)
        for axis in axes:
            found = found * self.mesh.sizes[axis] + self.mesh.coordinates[axis]
        return found

    def __str__(self) -> str:
        dims = [
            f"{local}{{{','.join(axes)}}}{size}" if axes else str(size)
            for local, axes, size in zip(self.local_shape(), self.layout.dims, self.shape, strict=True)
        ]
        sums = f" + sum over {','.join(self.layout.partial)}" if self.layout.partial else ""
        return f"[{', '.join(dims)}]{sums}"
