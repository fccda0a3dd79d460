"""What a search answers: the steps with what each of them costs, the bound on bytes, and the memory that they need."""

from __future__ import annotations

from dataclasses import dataclass

from partita.redistribution.array_type import ArrayType
from partita.redistribution.steps import Step


@dataclass(frozen=True)
class Priced:
    """A step and its price: bytes of the device that sends most and of the one that receives most, seconds, and the
    largest array of a device after it."""

    step: Step
    sent_bytes: int
    received_bytes: int
    seconds: float
    local_bytes: int


@dataclass(frozen=True)
class Redistribution:
    """The steps from one type to another; none where each device has what it wants.

    ``bytes_per_device`` is the most that a device sends in all steps, or receives. ``lower_bound_bytes`` is that of
    ``bound``: no scheme has less. ``peak_bytes`` is the largest array of a device at any time, source and target among
    them; ``memory_bound_bytes`` is what it was to stay under. ``optimal``: nothing cheaper is among what was searched,
    to the end; or the objective is bytes, and the answer has as many as the bound. ``considered`` counts the types that
    were looked at.
    """

    source: ArrayType
    target: ArrayType
    item_bytes: int
    steps: tuple[Priced, ...]
    bytes_per_device: int
    lower_bound_bytes: int
    peak_bytes: int
    memory_bound_bytes: int
    seconds: float
    optimal: bool
    considered: int

    @property
    def peak(self) -> str:
        """The elements of the largest array, in the sizes of the dims."""
        types = [self.source, self.target, *(priced.step.after for priced in self.steps)]
        return elements_in_sizes(max(types, key=lambda kind: kind.largest))


def elements_in_sizes(kind: ArrayType) -> str:
    """What a device holds at most, for any sizes: ``n0/4·n1/2``; ``⌈n0/4⌉`` where 4 doesn't divide the first dim."""
    words = []
    for index, (size, axes) in enumerate(zip(kind.shape, kind.layout.dims, strict=True)):
        pieces = kind.mesh.size(axes)
        word = f"n{index}/{pieces}" if pieces > 1 else f"n{index}"
        words.append(f"⌈{word}⌉" if size % pieces else word)
    return "·".join(words) or "1"
