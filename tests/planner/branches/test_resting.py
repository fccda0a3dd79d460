"""What the blocks that are left take at least, beside all stages of them that there are."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

import numpy as np
import pytest

from partita.planner.branches.resting import least_rest
from partita.planner.ideals import all_ideals, packed, unpacked

SIZES = (1, 2)


def drawn(random: Random, blocks: int) -> list[tuple[int, int]]:
    """Edges (maker, reader), for each block after the first up to two."""
    return sorted({(random.randrange(to), to) for to in range(1, blocks) for _ in range(random.randint(0, 2))})


def stages(sets: np.ndarray, at: int, units: int) -> Iterator[list[tuple[int, int, int]]]:
    """All stages of what a set leaves, (set before, set behind, size), on just so many units."""
    whole = len(sets) - 1
    if at == whole:
        if units == 0:
            yield []
        return
    for other in range(at + 1, whole + 1):
        for size in SIZES:
            if size <= units and not (sets[at] & ~sets[other]).any():
                for rest in stages(sets, other, units - size):
                    yield [(at, other, size), *rest]


def seconds(sets, found, each, edges, c: int) -> float:
    """The longest of the stages' starts and c turns: each begins after one turn of those that it reads from."""
    begins, longest = [], 0.0
    blocks = [set(np.flatnonzero(sets[other] & ~sets[at]).tolist()) for at, other, _ in found]
    turns = [sum(each[size][block] for block in mine) for mine, (*_, size) in zip(blocks, found, strict=True)]
    for at, mine in enumerate(blocks):
        read = [
            begins[before] + turns[before]
            for before in range(at)
            if any(maker in blocks[before] and reader in mine for maker, reader in edges)
        ]
        begins.append(max(read, default=0.0))
        longest = max(longest, begins[at] + c * turns[at])
    return longest


@pytest.mark.parametrize("seed", range(12))
def test_no_stages_of_what_is_left_take_less(seed):
    """Of one and two stages it is exact; of three none takes less."""
    random = Random(seed)
    blocks, c = 5, random.randint(1, 4)
    edges = drawn(random, blocks)
    ideals = all_ideals(blocks, edges, 100)
    sets = unpacked(ideals.masks, blocks)
    each = {size: [random.uniform(1, 3) / size**0.8 for _ in range(blocks)] for size in SIZES}
    makers = np.zeros((blocks, blocks), bool)
    for maker, reader in edges:
        makers[reader, maker] = True
    values = sorted({maker for maker, _ in edges})
    alive = [
        [at for at, v in enumerate(values) if one[v] and any(m == v and not one[r] for m, r in edges)] for one in sets
    ]
    live = np.zeros((len(sets), max(1, *map(len, alive))), np.int64)
    for row, mine in enumerate(alive):
        live[row, : len(mine)] = mine
    found = least_rest(
        ideals.masks, np.array([sets @ np.array(each[size]) for size in SIZES]), np.array(SIZES), c, 3, packed(makers),
        live, np.array([len(mine) for mine in alive]), np.array(values, np.int64),
    )  # fmt: skip
    for at in range(len(sets) - 1):
        for units in (1, 2, 3):
            ways = [seconds(sets, one, each, edges, c) for one in stages(sets, at, units)]
            least = min(ways, default=inf)
            assert found[at, units] <= least * (1 + 1e-12)
            if units < 3:
                assert found[at, units] == pytest.approx(least, rel=1e-12)
