"""What one device has of a value, along each inner axis of its stage: all of it, a part of one dim, or one addend.

An axis that isn't named in a state has the whole value. Several axes may cut one dim: a cut of ``parts`` equal parts,
each into as many pieces as the axis is long, is then inside the cuts of fewer parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Part:
    """A cut dim: it consists of so many equal ``parts`` (of the whole tensor), and each is cut."""

    dim: int
    parts: int = 1


Spread = Part | Literal["partial"]
# By axis; an axis that isn't there has all of the value.
State = Mapping[str, Spread]


def local_shape(shape: Sequence[int], state: State, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one device's part, padding included; ``sizes`` are the axes'."""
    found = list(shape)
    for axis, part in outer_first(state):
        size = sizes[axis]
        pieces = size * local_parts(state, axis, sizes)
        found[part.dim] = -(-found[part.dim] // pieces) * pieces // size
    return tuple(found)


def local_parts(state: State, axis: str, sizes: Mapping[str, int]) -> int:
    """The equal parts of the cut dim that a device has, each cut along the axis, before that cut."""
    own = state[axis]
    assert isinstance(own, Part)
    parts = own.parts
    for other, part in outer_first(state):
        if other != axis and part.dim == own.dim and part.parts < own.parts:
            parts //= sizes[other]
    return parts


def outer_first(state: State) -> list[tuple[str, Part]]:
    """The cuts of a state, those with others inside them first."""
    cuts = [(axis, part) for axis, part in state.items() if isinstance(part, Part)]
    return sorted(cuts, key=lambda cut: cut[1].parts)


def nests(state: State, sizes: Mapping[str, int]) -> bool:
    """Whether of any two cuts of one dim one lies inside a piece of the other."""
    cuts = outer_first(state)
    return all(
        inner.parts % (outer.parts * sizes[axis]) == 0
        for index, (axis, outer) in enumerate(cuts)
        for _, inner in cuts[index + 1 :]
        if inner.dim == outer.dim
    )
