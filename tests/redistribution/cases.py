"""Random redistributions: producers that make up a whole array in many ways, and consumers that want any part of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from random import Random

import numpy as np

from partita.redistribution import ArrayType, Layout, Mesh, View
from partita.redistribution.view import Box

Made = tuple[int, View, np.ndarray]


@dataclass(frozen=True)
class Case:
    """``whole`` is what the producers make up; ``sets`` are consumers that together want one view, in all its parts."""

    whole: np.ndarray
    producers: list[Made]
    sets: list[list[tuple[int, View]]]

    @property
    def consumers(self) -> list[tuple[int, View]]:
        return [consumer for group in self.sets for consumer in group]


def index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def any_layout(random: Random, rank: int) -> tuple[Layout, dict[str, int]]:
    """A layout of a tensor on a mesh of up to 12 devices; each axis cuts a dim, is partial, or holds replicas."""
    while prod(sizes := [random.randint(1, 4) for _ in range(random.randint(1, 3))]) > 12:
        pass
    mesh = dict(zip("xyz", sizes, strict=False))
    dims: list[list[str]] = [[] for _ in range(rank)]
    partial = []
    for axis in random.sample(list(mesh), len(mesh)):
        home = random.randrange(rank + 2)
        if home < rank:
            dims[home].append(axis)
        elif home == rank:
            partial.append(axis)
    return Layout(tuple(map(tuple, dims)), tuple(partial)), mesh


def layout_views(layout: Layout, shape: tuple[int, ...], mesh: dict[str, int]) -> list[View]:
    """What each device of a mesh has of a tensor, devices row-major."""
    kind = ArrayType(shape, layout, Mesh.of(**mesh))
    n = kind.mesh.size(layout.partial)
    boxes = [tuple((start, stop) for start, stop in box) for box in kind.boxes.tolist()]
    return [View(box, k, n) for box, k in zip(boxes, kind.parts.tolist(), strict=True)]


def any_view(random: Random, shape: tuple[int, ...]) -> Box:
    """A window anywhere, empty ones among them."""
    return tuple((a, b) for a, b in (sorted(random.randint(0, size) for _ in range(2)) for size in shape))


def widened(random: Random, box: Box, shape: tuple[int, ...]) -> Box:
    """A window that reaches into its neighbours."""
    return tuple(
        (max(0, start - random.randint(0, 2)), min(size, stop + random.randint(0, 2)))
        for (start, stop), size in zip(box, shape, strict=True)
    )


def tiles(random: Random, shape: tuple[int, ...]) -> list[Box]:
    """The array, cut at random places of each dim."""
    ends = [sorted({0, size, *(random.randint(0, size) for _ in range(random.randint(0, 2)))}) for size in shape]
    return list(product(*(list(pairwise(found)) for found in ends)))


def parts_of(random: Random, whole: np.ndarray, n: int) -> list[np.ndarray]:
    """Integers in floating point, so that every order of adding them gives the same."""
    parts = [np.array([random.randint(-50, 50) for _ in range(whole.size)], dtype=whole.dtype).reshape(whole.shape)
             for _ in range(n - 1)]  # fmt: skip
    return [*parts, whole - sum(parts, np.zeros_like(whole))]


def from_layout(random: Random, whole: np.ndarray) -> list[Made]:
    layout, mesh = any_layout(random, whole.ndim)
    views = layout_views(layout, whole.shape, mesh)
    parts = parts_of(random, whole, views[0].n)
    return [(device, view, parts[view.k][index(view.intervals)]) for device, view in enumerate(views)]


def from_windows(random: Random, whole: np.ndarray) -> list[Made]:
    """Every tile from windows of its own: whole and reaching over, or parts of a sum that are cut on; some twice."""
    made = []
    sums = random.random() < 0.5
    for tile in tiles(random, whole.shape):
        n = random.randint(1, 3) if sums else 1
        for k, part in enumerate(parts_of(random, whole, n)):
            # Where some regions are sums, a window that reaches over would make them twice.
            boxes = [widened(random, tile, whole.shape)] if not sums else cut(random, tile)
            for box in boxes * random.randint(1, 2):
                made.append((random.randrange(6), View(box, k, n), part[index(box)]))
    random.shuffle(made)
    return made


def cut(random: Random, tile: Box) -> list[Box]:
    shape = tuple(stop - start for start, stop in tile)
    return [tuple((a + s, b + s) for (a, b), (s, _) in zip(box, tile, strict=True)) for box in tiles(random, shape)]


def any_case(random: Random) -> Case:
    shape = tuple(random.randint(0, 9) if random.random() < 0.1 else random.randint(1, 9)
                  for _ in range(random.choice([0, 1, 1, 2, 2, 3])))  # fmt: skip
    whole = np.array([random.randint(-99, 99) for _ in range(prod(shape))], dtype="float64").reshape(shape)
    producers = random.choice([from_layout, from_windows])(random, whole)
    if random.random() < 0.5:
        layout, mesh = any_layout(random, len(shape))
        offset = random.choice([0, 0, 3])
        wanted: dict[Box, list[tuple[int, View]]] = {}
        for device, view in enumerate(layout_views(layout, shape, mesh)):
            wanted.setdefault(view.intervals, []).append((device + offset, view))
        sets = []
        for group in wanted.values():
            # Each copy of a sum is a set of its own.
            n = group[0][1].n
            by_part = [[consumer for consumer in group if consumer[1].k == k] for k in range(n)]
            sets += [list(copies) for copies in zip(*by_part, strict=True)]
    else:
        sets = []
        for _ in range(random.randint(1, 4)):
            box, n = any_view(random, shape), random.choice([1, 1, 2, 3])
            sets.append([(random.randrange(8), View(box, k, n)) for k in range(n)])
    return Case(whole, producers, sets)
