"""A view: the part of a tensor that one device has or wants (SuperScaler's vTensor, section 3.1).

Its *mask* is an index map, one half-open interval a dim, and a value map: the k-th of n partial sums (n = 1: the value
itself). Equal masks are replicas. What lives here is the mask and the algebra of boxes; who sends what to whom is in
``exchange``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from partita.errors import PlanError
from partita.redistribution.layout import Interval

Box = tuple[Interval, ...]


@dataclass(frozen=True)
class View:
    """Elements ``intervals`` of a tensor (none: a scalar), as part ``k`` of a sum of ``n``.

    PlanError where an interval ends before it starts, or ``k`` is none of the ``n`` parts.
    """

    intervals: Box
    k: int = 0
    n: int = 1

    def __post_init__(self) -> None:
        for start, stop in self.intervals:
            if not 0 <= start <= stop:
                raise PlanError(
                    f"a view of [{start}, {stop}): an interval starts at 0 or later and ends where it starts or later"
                )
        if not 0 <= self.k < self.n:
            raise PlanError(f"a view is part {self.k} of {self.n}; the parts of {self.n} are 0 … {self.n - 1}")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.intervals)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def contains(self, other: View) -> bool:
        """Whether the other is a piece of this one, with the same value map (or has no elements)."""
        return not other.elements or (
            (self.k, self.n) == (other.k, other.n) and intersection(self.intervals, other.intervals) == other.intervals
        )

    def local(self, box: Box) -> Box:
        """A box of the tensor as indices of the array that holds this view."""
        return tuple((a - start, b - start) for (a, b), (start, _) in zip(box, self.intervals, strict=True))

    def __str__(self) -> str:
        return said(self.intervals) + (f", part {self.k} of {self.n}" if self.n > 1 else "")


def said(box: Box) -> str:
    """A box in a message: ``[0, 4) × [2, 3)``."""
    return " × ".join(f"[{start}, {stop})" for start, stop in box) or "the scalar"


def intersection(one: Box, other: Box) -> Box | None:
    """The elements of both; None where there are none."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def without(box: Box, taken: Box) -> list[Box]:
    """What is left of ``box`` outside ``taken``, as at most two boxes a dim that don't overlap."""
    both = intersection(box, taken)
    if both is None:
        return [box]
    left = []
    for dim, ((start, stop), (a, b)) in enumerate(zip(box, both, strict=True)):
        for piece in ((start, a), (b, stop)):
            if piece[0] < piece[1]:
                # The dims before this one are those of the intersection: no element comes twice.
                left.append((*both[:dim], piece, *box[dim + 1 :]))
    return left
