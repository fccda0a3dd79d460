"""The downward-closed sets of a model's blocks, from which ``proof`` makes stages."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from partita.planner.branches.traffic import Value, block_pairs, values
from partita.planner.ideals import Ideals, ideals, unpacked
from partita.planner.joint.price import Pricing


class Sets:
    """The downward-closed sets of a model's blocks, up to ``most`` of them, and the values between them."""

    def __init__(self, pricing: Pricing, most: int):
        graph = pricing.problem.graph
        self.pricing, self.pairs = pricing, block_pairs(graph)
        self.values: tuple[Value, ...] = values(pricing)
        self.ideals: Ideals = ideals(len(graph.blocks), self.pairs, most)

    @cached_property
    def inside(self) -> NDArray[np.float64]:
        """[blocks, sets]: 1 where the set has the block, else 0."""
        return np.ascontiguousarray(unpacked(self.ideals.masks, self.ideals.nodes).T, np.float64)

    @cached_property
    def readers(self) -> NDArray[np.bool_]:
        """[values, blocks]"""
        found = np.zeros((len(self.values), self.ideals.nodes), np.bool_)
        for at, value in enumerate(self.values):
            found[at, list(value.readers)] = True
        return found

    @cached_property
    def live(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[sets, most] and [sets]: the values that are made within a set and read outside, and how many they are."""
        inside = self.inside.T > 0
        alive = np.zeros((len(inside), len(self.values)), np.bool_)
        for at, value in enumerate(self.values):
            alive[:, at] = inside[:, value.maker] & ~inside[:, self.readers[at]].all(axis=1)
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
        found: NDArray[np.bool_] = self.ideals.sums(first) < first.sum() - 0.5
        return found
