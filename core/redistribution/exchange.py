"""Who gives what to whom in a step: boxes of the tensor, device by device.

Of a direct step: a device keeps what it has. What it lacks of a tile comes from the devices that hold the tile, each of
which sends as much as the others: whole blocks in turn where that comes out even, else each block in equal parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from partita.redistribution.steps import LOCAL, Step
from partita.redistribution.view import Box, intersection


@dataclass(frozen=True)
class Copy:
    """Elements ``box`` of the tensor go from one device to another, or stay; ``add``: onto what is there."""

    source: int
    target: int
    box: Box
    add: bool = False

    @property
    def elements(self) -> int:
        return prod(stop - start for start, stop in self.box)


class Exchange:
    """A step's copies. Where the target is a sum, a device begins with zeros; everything else is written once."""

    def __init__(self, step: Step):
        self.step = step
        self.before, self.after = step.before, step.after
        # By tile and part of a sum: the places that hold it, and what each place of the target lacks of it.
        self._shares: dict[tuple[int, int], list[Copy]] = {}

    def takes(self, device: int) -> list[Copy]:
        """What a device's new array is made of, in the order in which it is written; its own part first."""
        if device not in self.after.mesh.place:
            return []
        if self.step.op not in ("direct", "all-permute"):
            return self._taken_in_group(device)
        place = self.after.mesh.place[device]
        wanted, part = self.after.boxes[place], self.after.parts[place]
        own = self._kept(device)
        met = np.flatnonzero(_meets(self.before.boxes, wanted) & (self.before.parts == part))
        tiles = dict.fromkeys(self.before.tiles[met].tolist())
        if own:
            tiles.pop(int(self.before.tiles[self.before.mesh.place[device]]), None)
        return own + [copy for tile in tiles for copy in self._shared(tile, int(part)) if copy.target == device]

    def gives(self, device: int) -> list[Copy]:
        """What other devices take from this one."""
        if device not in self.before.mesh.place or self.step.op in LOCAL:
            return []
        place = self.before.mesh.place[device]
        if self.step.op not in ("direct", "all-permute"):
            # Whether its taker adds it up is the taker's business.
            group = self.before.mesh.group_of(device, self.step.axes)
            boxes = {other: self.after.boxes[self.after.mesh.place[other]] for other in group}
            return [Copy(device, other, box) for other, wanted in boxes.items() if other != device
                    and (box := _both(self.before.boxes[place], wanted)) is not None]  # fmt: skip
        shared = self._shared(int(self.before.tiles[place]), int(self.before.parts[place]))
        return [copy for copy in shared if copy.source == device]

    def _taken_in_group(self, device: int) -> list[Copy]:
        place = self.after.mesh.place[device]
        if self.step.op == "mask" and self.before.mesh.coordinates[self.step.axes[0]][place]:
            return []
        if self.step.op in LOCAL:
            return self._kept(device)
        adds = self.step.op in ("all-reduce", "reduce-scatter")
        found: list[Copy] = []
        for other in self.before.mesh.group_of(device, self.step.axes):
            box = _both(self.before.boxes[self.before.mesh.place[other]], self.after.boxes[place])
            if box is not None:
                found.append(Copy(other, device, box, adds and bool(found)))
        return found

    def _kept(self, device: int) -> list[Copy]:
        """What a device has already of what it wants."""
        if device not in self.before.mesh.place:
            return []
        here, there = self.before.mesh.place[device], self.after.mesh.place[device]
        box = _both(self.before.boxes[here], self.after.boxes[there])
        return [] if box is None else [Copy(device, device, box)]

    def _shared(self, tile: int, part: int) -> list[Copy]:
        """All copies of what one tile's holders give to those that lack it."""
        if (tile, part) in self._shares:
            return self._shares[tile, part]
        held = np.flatnonzero((self.before.tiles == tile) & (self.before.parts == part))
        holders = [self.before.mesh.devices[place] for place in held]
        box = self.before.boxes[held[0]]
        lacking = np.flatnonzero(_meets(self.after.boxes, box) & (self.after.parts == part))
        has = set(holders)
        wanted = {}
        for place in lacking:
            device = self.after.mesh.devices[place]
            block = _both(box, self.after.boxes[place])
            if device not in has and block is not None:
                wanted[device] = block
        found: list[Copy] = []
        for consumers, near in self._near(list(wanted), holders):
            found += _dealt([(device, wanted[device]) for device in consumers], near)
        self._shares[tile, part] = found
        return found

    def _near(self, consumers: list[int], holders: list[int]) -> list[tuple[list[int], list[int]]]:
        """Consumers with those that serve them: those of their node, where there are any."""
        nodes = self.step.nodes
        if nodes is None:
            return [(consumers, holders)]
        groups: dict[int | None, list[int]] = {}
        homes = {nodes[holder] for holder in holders}
        for device in consumers:
            groups.setdefault(nodes[device] if nodes[device] in homes else None, []).append(device)
        return [
            (found, [holder for holder in holders if node is None or nodes[holder] == node])
            for node, found in groups.items()
        ]


def _dealt(wanted: Sequence[tuple[int, Box]], holders: Sequence[int]) -> list[Copy]:
    """Blocks dealt out to those who can send them, so that all send alike."""
    if not wanted:
        return []
    count = len(holders)
    sizes = {prod(stop - start for start, stop in box) for _, box in wanted}
    if len(sizes) == 1 and len(wanted) % count == 0:
        return [Copy(holders[index % count], device, box) for index, (device, box) in enumerate(wanted)]
    # Where parts are unequal, each holder has the larger ones in turn.
    return [
        Copy(holders[(number + index) % count], device, piece)
        for index, (device, box) in enumerate(wanted)
        for number, piece in enumerate(divided(box, count))
        if all(start < stop for start, stop in piece)
    ]


def divided(box: Box, count: int) -> list[Box]:
    """A box as that many boxes of nearly equal size, some empty where there are too few elements."""
    found = [box]
    while len(found) < count:
        left = count // len(found)
        factor = next(f for f in range(2, left + 1) if left % f == 0)
        found = [piece for whole in found for piece in _halved(whole, factor)]
    return found


def _halved(box: Box, factor: int) -> list[Box]:
    lengths = [stop - start for start, stop in box]
    if not lengths:
        # A scalar isn't divided.
        return [box] + [((0, 0),)] * (factor - 1)
    divides = [dim for dim, length in enumerate(lengths) if length and length % factor == 0]
    dim = divides[0] if divides else max(range(len(lengths)), key=lambda dim: lengths[dim])
    start = box[dim][0]
    ends = [start + lengths[dim] * index // factor for index in range(factor + 1)]
    return [(*box[:dim], (a, b), *box[dim + 1 :]) for a, b in zip(ends, ends[1:], strict=False)]


def _meets(boxes: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Which of the boxes ``[places, dims, 2]`` have elements in common with one."""
    return (np.minimum(boxes[..., 1], box[..., 1]) > np.maximum(boxes[..., 0], box[..., 0])).all(axis=1)


def _both(one: np.ndarray, other: np.ndarray) -> Box | None:
    return intersection(one.tolist(), other.tolist())
