"""Random redistributions: any layouts of any small array, on one mesh or between two, seeded."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod
from random import Random

import numpy as np

from partita.redistribution import ArrayType, Layout, Mesh

DEVICES = 8


@dataclass(frozen=True)
class Problem:
    source: ArrayType
    target: ArrayType

    @property
    def elements(self) -> int:
        """Of the device that holds most, before or after."""
        return max(self.source.largest, self.target.largest)

    def __str__(self) -> str:
        meshes = [f"{kind.mesh} on {','.join(map(str, kind.mesh.devices))}" for kind in (self.source, self.target)]
        there = "" if self.source.mesh == self.target.mesh else f" to {meshes[1]}"
        return f"{list(self.source.shape)} {self.source.layout} -> {self.target.layout}; {meshes[0]}{there}"


def pair(mesh: str, shape: tuple[int, ...], source: str, target: str) -> tuple[ArrayType, ArrayType]:
    """An array of that shape before and after, on one mesh."""
    axes = Mesh.parse(mesh)
    return ArrayType(shape, Layout.parse(source), axes), ArrayType(shape, Layout.parse(target), axes)


def any_mesh(random: Random, devices: int = DEVICES, names: str = "xyzw") -> Mesh:
    """One to four axes, of sizes 1 to 4 (few of size 1)."""
    while prod(sizes := [random.choice([1, 2, 2, 2, 2, 3, 4]) for _ in range(random.randint(1, 4))]) > devices:
        pass
    return Mesh(tuple(zip(names, sizes, strict=False)), tuple(range(prod(sizes))))


def any_layout(random: Random, mesh: Mesh, dims: int, sums: bool = True) -> Layout:
    """Each axis cuts a dim, in any order, holds replicas, or parts of a sum."""
    orders: list[list[str]] = [[] for _ in range(dims)]
    partial = []
    for axis in random.sample(list(mesh.sizes), len(mesh.sizes)):
        home = random.choice([*range(dims), *range(dims), -1, -2 if sums else -1])
        if home >= 0:
            orders[home].append(axis)
        elif home == -2:
            partial.append(axis)
    return Layout(tuple(map(tuple, orders)), tuple(axis for axis in mesh.sizes if axis in partial))


def any_problem(random: Random, *, sums: bool | None = None, even: bool | None = None, one_mesh: bool | None = None,
                devices: int = DEVICES) -> Problem:  # fmt: skip
    """What isn't said is drawn: a third have sums, half are even, a quarter are between two meshes."""
    sums = random.random() < 0.33 if sums is None else sums
    even = random.random() < 0.5 if even is None else even
    one_mesh = random.random() < 0.75 if one_mesh is None else one_mesh
    mesh = any_mesh(random, devices)
    other = mesh if one_mesh else _another_mesh(random, mesh, devices)
    dims = random.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])
    source, target = any_layout(random, mesh, dims, sums), any_layout(random, other, dims, sums)
    shape = tuple(
        lcm(mesh.size(one), other.size(two)) * random.randint(1, 2) if even else random.randint(1, 7)
        for one, two in zip(source.dims, target.dims, strict=True)
    )
    if shape and not even and random.random() < 0.06:
        empty = random.randrange(dims)
        shape = (*shape[:empty], 0, *shape[empty + 1 :])
    return Problem(ArrayType(shape, source, mesh), ArrayType(shape, target, other))


def _another_mesh(random: Random, mesh: Mesh, devices: int) -> Mesh:
    """Of the same devices in another shape or order, of some of them, of more, of others."""
    # The same names mean other things there, and sometimes names differ.
    found = any_mesh(random, devices, random.choice(["xyzw", "abcd"]))
    pool = random.choice([list(mesh.devices), list(range(devices)), list(range(devices, 2 * devices)), list(range(12))])
    if len(pool) < len(found.devices):
        pool = list(range(2 * devices))
    chosen = random.sample(pool, len(found.devices))
    return Mesh(found.axes, tuple(chosen if random.random() < 0.5 else sorted(chosen)))


def spread(random: Random, array: np.ndarray, kind: ArrayType) -> dict[int, np.ndarray]:
    """What each device holds of it; the parts of a sum are any whole numbers that add up to it."""
    count = int(kind.parts.max()) + 1
    drawn = np.random.default_rng(random.randrange(2**32)).integers(-99, 99, (count, *array.shape))
    parts = drawn.astype(array.dtype)
    parts[-1] = array - parts[:-1].sum(axis=0)
    return {
        device: parts[kind.parts[place]][tuple(slice(start, stop) for start, stop in kind.boxes[place])].copy()
        for place, device in enumerate(kind.mesh.devices)
    }


def whole(problem: Problem) -> np.ndarray:
    """An array whose elements all differ, in floating point, where whole numbers are added exactly."""
    return np.arange(1.0, 1.0 + prod(problem.source.shape)).reshape(problem.source.shape)
