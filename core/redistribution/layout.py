"""A layout: how one tensor lies on a mesh. Which part of it each device holds, its ``ArrayType`` says.

Written one entry a tensor dim, mesh axes joined by ``.`` major first, ``-`` for a dim that isn't sharded, axes of
partial sums after ``+``: ``x.y,-`` or ``-,-+x``. An axis that isn't named holds replicas. A dim that an axis doesn't
divide is cut as ``torch.chunk`` does it: pieces of ceil(n/k), the last ones short or empty; the next axis cuts those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from partita.errors import InputError

Interval = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """``dims[i]`` are the mesh axes that shard tensor dim i, major first; over ``partial`` the tensor is a sum."""

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        axes = (*self.cutting, *self.partial)
        twice = sorted({axis for axis in axes if axes.count(axis) > 1})
        if twice:
            raise InputError(f'layout "{self}": the mesh axis "{twice[0]}" occurs twice; an axis cuts one dim, once')

    @property
    def cutting(self) -> tuple[str, ...]:
        """The axes that cut a dim, dim after dim."""
        return tuple(axis for dim in self.dims for axis in dim)

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
