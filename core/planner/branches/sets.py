"""The downward-closed sets of a model's blocks, from which ``proof`` makes stages."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from partita.planner.branches.traffic import Value, block_pairs, values
from partita.planner.ideals import Ideals, all_ideals, packed, unpacked
from partita.planner.joint.price import Pricing


class Sets:
    """The downward-closed sets of a model's blocks, and the values between them."""

    def __init__(self, pricing: Pricing, found: Ideals):
        self.pricing, self.pairs, self.ideals = pricing, block_pairs(pricing.problem.graph), found
        self.values: tuple[Value, ...] = values(pricing)

    @classmethod
    def of(cls, pricing: Pricing, most: int) -> Sets | None:
        """All of them; None where there are more than ``most``."""
        graph = pricing.problem.graph
        found = all_ideals(len(graph.blocks), block_pairs(graph), most)
        return None if found is None else cls(pricing, found)

    @cached_property
    def inside(self) -> NDArray[np.float64]:
        """[blocks, sets]: 1 where the set has the block, else 0."""
        return np.ascontiguousarray(unpacked(self.ideals.masks, self.ideals.nodes).T, np.float64)

    @cached_property
    def readers(self) -> NDArray[np.uint64]:
        """[values, words]: the blocks that read each value, a bit a block."""
        found = np.zeros((len(self.values), self.ideals.nodes), np.bool_)
        for at, value in enumerate(self.values):
            found[at, list(value.readers)] = True
        return packed(found)

    @cached_property
    def behind(self) -> NDArray[np.uint64]:
        """[values, words]: the blocks that read each value, or what was made of it, a bit a block."""
        after = np.zeros((self.ideals.nodes, self.ideals.nodes), np.bool_)
        for maker, reader in sorted(self.pairs, reverse=True):
            after[maker, reader] = True
            after[maker] |= after[reader]
        found = np.zeros((len(self.values), self.ideals.nodes), np.bool_)
        for at, value in enumerate(self.values):
            readers = list(value.readers)
            found[at, readers] = True
            found[at] |= after[readers].any(axis=0)
        return packed(found)

    @cached_property
    def live(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[sets, most] and [sets]: the values that are made within a set and read outside, and how many they are."""
        inside = self.inside.T > 0
        alive = np.zeros((len(inside), len(self.values)), np.bool_)
        for at, value in enumerate(self.values):
            alive[:, at] = inside[:, value.maker] & ~inside[:, list(value.readers)].all(axis=1)
        count = alive.sum(axis=1).astype(np.int64)
        found = np.zeros((len(alive), max(1, int(count.max()))), np.int64)
        for row, one in enumerate(alive):
            found[row, : count[row]] = np.flatnonzero(one)
        return found, count

    @cached_property
    def begins(self) -> NDArray[np.bool_]:
        """[sets]: whether some block outside reads nothing."""
        first = np.ones(self.ideals.nodes)
        first[[reader for _, reader in self.pairs]] = 0.0
        found: NDArray[np.bool_] = first @ self.inside < first.sum() - 0.5
        return found
