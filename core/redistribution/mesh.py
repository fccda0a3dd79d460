"""A mesh: devices as a grid whose axes have names and sizes. Written ``x=2,y=4``; devices are row-major, the last axis
innermost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from partita.errors import InputError

LARGEST = 1_000_000


@dataclass(frozen=True)
class Mesh:
    """``axes`` are names with sizes, outermost first; ``devices[i]`` is the device at the i-th place of the grid.

    InputError where sizes aren't positive, a name or a device comes twice, or devices are more or fewer than places.
    """

    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f'mesh "{self}": the axis "{twice[0]}" occurs twice')
        for name, size in self.axes:
            if size < 1:
                raise InputError(f'mesh "{self}": the axis "{name}" has size {size}; 1 or more works')
        places = prod(size for _, size in self.axes)
        if len(self.devices) != places:
            raise InputError(f'mesh "{self}" has {places} places, but {len(self.devices)} devices are named')
        if len(set(self.devices)) != places:
            twice_there = next(device for device in self.devices if self.devices.count(device) > 1)
            raise InputError(f'mesh "{self}": device {twice_there} is named twice')

    @classmethod
    def of(cls, devices: Sequence[int] | None = None, **axes: int) -> Mesh:
        """The mesh of these axes, in the order given; its devices are 0, 1, … unless they are named."""
        places = prod(axes.values())
        return cls(tuple(axes.items()), tuple(range(places) if devices is None else devices))

    @classmethod
    def parse(cls, text: str, devices: Sequence[int] | None = None) -> Mesh:
        """The mesh that the text spells, such as ``x=2,y=4``; InputError quotes the entry that can't be read."""
        axes = []
        for entry in text.replace(" ", "").split(","):
            found = re.fullmatch(r"([A-Za-z_]\w*)=(\d{1,9})", entry)
            if found is None:
                raise InputError(f'mesh "{text}": "{entry}" is no axis with its size, such as x=2')
            axes.append((found[1], int(found[2])))
        places = prod(size for _, size in axes)
        if places > LARGEST:
            raise InputError(f'mesh "{text}" has {places:,} places; {LARGEST:,} at most')
        return cls(tuple(axes), tuple(range(places) if devices is None else devices))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @cached_property
    def coordinates(self) -> dict[str, np.ndarray]:
        """Of each axis, the coordinate of every place, ``[places]``."""
        grid = np.indices([size for _, size in self.axes]).reshape(len(self.axes), -1)
        return {name: grid[index] for index, (name, _) in enumerate(self.axes)}

    @cached_property
    def place(self) -> dict[int, int]:
        """The place of each device."""
        return {device: place for place, device in enumerate(self.devices)}

    def size(self, axes: Sequence[str]) -> int:
        """Devices of a group along these axes."""
        return prod(self.sizes[axis] for axis in axes)

    def groups(self, axes: Sequence[str]) -> np.ndarray:
        """Places that differ along these axes alone, a row a group, ``[groups, members]``; members with the first of
        the axes outermost."""
        sizes = [size for _, size in self.axes]
        names = [name for name, _ in self.axes]
        inside = [names.index(axis) for axis in axes]
        outside = [index for index in range(len(names)) if index not in inside]
        grid = np.arange(prod(sizes)).reshape(sizes).transpose(*outside, *inside)
        return grid.reshape(-1, self.size(axes))

    def group_of(self, device: int, axes: Sequence[str]) -> list[int]:
        """The devices of a device's group along these axes, in the order of ``groups``."""
        groups = self.groups(axes)
        row = (groups == self.place[device]).any(axis=1).argmax()
        return [self.devices[place] for place in groups[row]]

    def split(self, axis: str, factors: Sequence[int]) -> Mesh:
        """The same devices with an axis divided into several, ``x[0]`` outermost; the factors multiply to its size."""
        assert prod(factors) == self.sizes[axis], (axis, factors)
        parts = tuple((f"{axis}[{index}]", factor) for index, factor in enumerate(factors))
        index = [name for name, _ in self.axes].index(axis)
        return Mesh((*self.axes[:index], *parts, *self.axes[index + 1 :]), self.devices)
