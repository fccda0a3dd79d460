"""The pairs of layouts that libraries are compared on: what everybody can state, and even.

Every mesh below holds 8 devices. An array of 1 GiB has one, two or three dims, and every axis of the mesh cuts one of
them or none. Of the two families of layouts, those *in mesh order* have the axes that cut one dim in the order of the
mesh, which is what a list of shards and replicas means to DTensor; *in any order* has the others too. A pair is two
unlike layouts of a family on one mesh. Those between which nothing has to be sent, such as from replicas to shards,
count as pairs but have no ratio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from random import Random

MESHES = ("x=8", "x=4,y=2", "x=2,y=4", "x=2,y=2,z=2")
SHAPES = ((2**28,), (2**14, 2**14), (2**10, 2**9, 2**9))
ITEM_BYTES = 4


@dataclass(frozen=True)
class Pair:
    """A redistribution, in words that need nobody's library: the mesh as ``x=4,y=2``, layouts as ``x.y,-``."""

    mesh: str
    shape: tuple[int, ...]
    source: str
    target: str


def all_pairs(any_order: bool) -> Iterator[Pair]:
    """Every pair, in a fixed order: 5,458 in mesh order, 14,686 in any."""
    for mesh, shape in product(MESHES, SHAPES):
        axes = [entry.partition("=")[0] for entry in mesh.split(",")]
        found = list(layouts(axes, len(shape), any_order))
        yield from (Pair(mesh, shape, one, two) for one, two in permutations(found, 2))


def drawn(count: int, seed: int, any_order: bool) -> list[Pair]:
    """That many of the pairs, none twice, in an order that mixes them; all where there are no more."""
    pairs = list(all_pairs(any_order))
    return Random(seed).sample(pairs, min(count, len(pairs)))


def layouts(axes: list[str], dims: int, any_order: bool) -> Iterator[str]:
    """Every way to let each axis cut a dim or none."""
    for homes in product(range(dims + 1), repeat=len(axes)):
        cut = [[axis for axis, home in zip(axes, homes, strict=True) if home == dim] for dim in range(dims)]
        orders = [list(permutations(dim)) if any_order else [tuple(dim)] for dim in cut]
        yield from (",".join(".".join(dim) or "-" for dim in order) for order in product(*orders))
