"""A layout: how one tensor lies on a mesh, and which part of it each device holds.

Written one entry a tensor dim, mesh axes joined by ``.`` major first, ``-`` for a dim that isn't sharded, axes of
partial sums after ``+``: ``x.y,-`` or ``-,-+x``. An axis that isn't named holds replicas. A dim that an axis doesn't
divide is cut as ``torch.chunk`` does it: pieces of ceil(n/k), the last ones short or empty; the next axis cuts those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from partita.errors import InputError

Interval = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """``dims[i]`` are the mesh axes that shard tensor dim i, major first; over ``partial`` the tensor is a sum."""

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        axes = [axis for dim in self.dims for axis in dim] + list(self.partial)
        twice = sorted({axis for axis in axes if axes.count(axis) > 1})
        if twice:
            raise InputError(f'layout "{self}": the mesh axis "{twice[0]}" occurs twice; an axis cuts one dim, once')

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout that the text spells; InputError quotes the entry that can't be read."""
        shards, plus, sums = text.replace(" ", "").partition("+")
        if plus and not sums:
            raise InputError(f'layout "{text}": no mesh axis after "+"')

        def names(entry: str) -> tuple[str, ...]:
            found = tuple(entry.split("."))
            for name in found:
                if not re.fullmatch(r"[A-Za-z_]\w*", name):
                    raise InputError(f'layout "{text}": "{entry}" is neither "-" nor mesh axes joined by "."')
            return found

        dims = tuple(() if entry == "-" else names(entry) for entry in shards.split(",")) if shards else ()
        return cls(dims, names(sums.replace("+", ".").replace(",", ".")) if sums else ())

    def __str__(self) -> str:
        dims = ",".join(".".join(dim) or "-" for dim in self.dims)
        return dims + (f"+{'.'.join(self.partial)}" if self.partial else "")

    def intervals(
        self, shape: tuple[int, ...], mesh: Mapping[str, int], place: Mapping[str, int]
    ) -> tuple[Interval, ...]:
        """The half-open interval of each dim that the device at ``place`` (axis to coordinate) holds.

        InputError where the tensor has another number of dims, or an axis isn't one of the mesh.
        """
        if len(shape) != len(self.dims):
            raise InputError(
                f'layout "{self}" has {len(self.dims)} entries, the tensor {list(shape)} has {len(shape)} dims'
            )
        found = []
        for size, axes in zip(shape, self.dims, strict=True):
            start, stop = 0, size
            for axis in axes:
                if axis not in mesh:
                    raise InputError(f'layout "{self}": the mesh has no axis "{axis}"; it has {", ".join(mesh)}')
                piece = -(-(stop - start) // mesh[axis])
                begin = min(start + place[axis] * piece, stop)
                start, stop = begin, min(begin + piece, stop)
            found.append((start, stop))
        return tuple(found)

    def local_shape(self, shape: tuple[int, ...], mesh: Mapping[str, int], place: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the part that the device at ``place`` holds."""
        return tuple(stop - start for start, stop in self.intervals(shape, mesh, place))
