"""What no stages of a table go under, by all sets of blocks that may be made before a stage: and stages near that.

Stages in an order without an edge back are the differences of a chain of downward-closed sets (``planner.ideals``). A
*label* stands for stages of one such set's blocks on the first units. Of each value that is read later it keeps when
that is made (E), how long a path may still lie behind its maker so that the maker's own turns end in time (T), and how
many stages (so that what the maker holds in flight fits; more than there are where it has a longer warm-up of its own).
Of two labels with the same set and units one that is no better in anything is dropped; what can't end under the limit
any more is, too (``resting``). All of the sharper formula (``formula``) is kept but a part of what passes ports: what
several stages read from one only where it is asked (``sharing``), and of these not which has the longest path. A stage
takes no less than its blocks in their fastest options, nor, where these don't fit, than in the fastest that do
(``fitting``) or Lagrange's bound of them (``joint.rows``).

Where no label is left, no stages take less than the limit: a proof. A label with all blocks is a candidate, which the
formula may find better than all that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf

import numpy as np
from numpy.typing import NDArray

from partita.planner.branches.fitting import KEPT
from partita.planner.branches.labels import BEFORE, SET, SHAPE, UNIT, extended
from partita.planner.branches.resting import least_rest
from partita.planner.branches.sets import Sets
from partita.planner.branches.traffic import Traffic
from partita.planner.ideals import packed
from partita.planner.joint.boundary import shares
from partita.planner.joint.rows import slopes
from partita.planner.joint.space import Family
from partita.planner.joint.stage_ways import Place, Places
from partita.planner.joint.table import JointTable

Array = NDArray[np.float64]
# What few stages are in flight for at most, in rounds of their warm-up.
LONGEST = 9
# More than any real block takes, where it can't be at all.
NEVER = 1e4


def longest(table: JointTable) -> int:
    """As if so many stages lay behind each other at most: more than there are where a stage's own warm-up is longer."""
    return max(min(table.all_units, table.blocks), min(table.micro_batches, LONGEST))


@dataclass(frozen=True)
class Candidate:
    """Stages: of each its blocks, first unit and shape; and about the seconds that they take."""

    seconds: float
    stages: tuple[tuple[tuple[int, ...], int, int], ...]

    @property
    def blocks(self) -> list[int]:
        """All blocks in a list of which the stages are runs."""
        return [block for blocks, _, _ in self.stages for block in blocks]

    @property
    def places(self) -> Places:
        """The stages as runs of this list."""
        stops = accumulate(len(blocks) for blocks, _, _ in self.stages)
        return tuple(
            Place(stop - len(blocks), stop, unit, shape)
            for stop, (blocks, unit, shape) in zip(stops, self.stages, strict=True)
        )


class Proof:
    """The labels of one family and number of micro-batches, for any depth and limit."""

    def __init__(self, sets: Sets, family: Family, micro_batches: int, back: bool = True):
        """``back``: whether it goes through all sets from the back first, which takes about their number's square."""
        self.sets, self.family, self.back = sets, family, back
        self.table: JointTable = sets.pricing.unmixed(family, micro_batches)
        prices = self.table.prices
        self.each = prices.forward + prices.backward
        self.real = np.isfinite(self.each)
        least = self._least(self.each)
        # [V, n]
        self.least: Array = np.where(self.real.any(axis=2), least, NEVER * least.max())
        self.deep = longest(self.table)
        self._of_depth: dict[int, tuple[NDArray[np.bool_], Array]] = {}

    def find(
        self, depths: tuple[int, ...], below: float, most: int, grid: float, joining: int = 0,
        sync: tuple[float, float] = (-1.0, inf), sharing: bool = False, work: int = 1 << 60,
    ) -> tuple[int, list[Candidate], int]:  # fmt: skip
        """How it ends (``labels``), what was found, and the work that it was; ``most``: labels, ``work``: work.

        Of several ``depths`` together stages hold what the least asks, and are as fast as the most lets them be.
        ``sync``: what the step's end takes, more than the first and up to the second. ``sharing``: whether what all
        readers of a stage take through its ports is kept, too, which goes with no ``joining``.

        Times are rounded to so much of the limit, to the side on which a proof stays one: a coarse ``grid`` makes more
        labels alike, and candidates of stages that take more.
        """
        assert not (sharing and joining)
        table, prices, (live, alive) = self.table, self.table.prices, self.sets.live
        least, ahead = (
            np.array([table.ahead(h) + depth * h for h in range(self.deep)], np.int64)
            for depth in (min(depths), max(depths))
        )
        held = np.minimum(least, table.micro_batches)
        if min(depths) not in self._of_depth:
            self._of_depth[min(depths)] = self._tight(held)
        outcome, found, seconds, numbers, work = extended(
            self.sets.ideals.masks, *self._sums, *self._of_depth[min(depths)], prices.base_bytes, prices.base_sync,
            table.room, table.units.astype(np.int64), table.prices_of.astype(np.int64), self._ports, self._nodes, live,
            alive, self.sets.begins, self.sets.readers, *self._moved, *self._ahead, max(self.least_sync, sync[0]),
            sync[1], sync[0], held, ahead, *self._kept, sharing, joining, below, table.micro_batches, below * grid,
            most, work,
        )  # fmt: skip
        candidates: dict[object, Candidate] = {}
        for end in sorted(zip(seconds.tolist(), found.tolist(), strict=True)):
            # Of the same stages with different memory in flight the fastest.
            candidate = self._candidate(numbers, *end)
            candidates.setdefault(candidate.stages, candidate)
        return int(outcome), list(candidates.values()), int(work)

    def _candidate(self, numbers: NDArray[np.int64], seconds: float, label: int) -> Candidate:
        """The stages of a label and of those before it."""
        stages = []
        while (before := int(numbers[label, BEFORE])) >= 0:
            blocks = self.sets.ideals.between(int(numbers[before, SET]), int(numbers[label, SET]))
            stages.append((tuple(blocks), int(numbers[before, UNIT]), int(numbers[label, SHAPE])))
            label = before
        return Candidate(seconds, tuple(reversed(stages)))

    def _least(self, values: Array) -> Array:
        """[..., n]: the least of the options that a block has, zero where it has none; of values [..., n, M]."""
        found = np.where(self.real if values.ndim == 3 else self.real[:, None], values, inf).min(axis=-1)
        return np.where(np.isfinite(found), found, 0.0)

    def _summed(self, values: Array) -> Array:
        """[..., sets], of values [..., n]."""
        found: Array = values.reshape(-1, values.shape[-1]) @ self.sets.inside
        return found.reshape(*values.shape[:-1], -1)

    @cached_property
    def _sums(self) -> tuple[Array, ...]:
        """[V, sets] each: seconds of a micro-batch, the least of its forward and of its backward turn, the most of its
        forward turn, and the least of its sync."""
        prices = self.table.prices
        forward, backward, sync = (self._least(one) for one in (prices.forward, prices.backward, prices.sync))
        most = np.where(self.real, prices.forward, 0.0).max(axis=2) * (1 + 1e-9)
        return tuple(self._summed(each) for each in (self.least, forward, backward, most, sync))

    def _tight(self, held: NDArray[np.int64]) -> tuple[NDArray[np.bool_], Array]:
        """By the stages behind a stage, with so many micro-batches in flight: [V, H], whether all blocks in their
        fastest options may not fit into one stage; and [V, H, L], there a few slopes of Lagrange's bound (0: none)."""
        prices, used = self.table.prices, self.table.used
        fastest = np.where(self.real, self.each, inf).argmin(axis=2)[:, :, None]
        fixed, held_bytes = (
            np.take_along_axis(each, fastest, axis=2)[..., 0].sum(axis=1)
            for each in (prices.fixed_bytes, prices.held_bytes)
        )
        temporary = np.where(self.real, prices.temporary_bytes, 0.0).max(axis=(1, 2))
        whole = (fixed + prices.base_bytes + temporary)[:, None] + held * held_bytes[:, None]
        tight = (whole > self.table.room) & used[:, None]
        found = {(v, h): slopes(prices, v, int(held[h])) for v, h in np.argwhere(tight).tolist()}
        chosen = np.zeros((*tight.shape, max([1, *(len(each) for each in found.values())])))
        for at, each in found.items():
            chosen[at][: len(each)] = each
        return tight, chosen

    @cached_property
    def _kept(self) -> tuple[tuple[Array, ...], NDArray[np.uint64], Array]:
        """What ``fitted`` asks: seconds and bytes of all options, and stages that it has seen."""
        prices = self.table.prices
        each = (self.each, prices.fixed_bytes, prices.held_bytes, prices.temporary_bytes)
        seconds, *sizes = (np.ascontiguousarray(one, float) for one in each)
        words = self.sets.ideals.masks.shape[1]
        return (seconds, *sizes), np.zeros((KEPT, words + 1), np.uint64), np.zeros(KEPT)

    @cached_property
    def _nodes(self) -> NDArray[np.int64]:
        """[K + 1, U]: the nodes of a stage as bits; none of one that isn't known."""
        shapes, units = self.table.prices_of.shape
        nodes = np.zeros((shapes + 1, units), np.int64)
        for shape, unit in np.argwhere(self.table.prices_of >= 0).tolist():
            for node in self._traffic.nodes(unit, shape):
                nodes[shape, unit] |= 1 << node
        return nodes

    @cached_property
    def _ports(self) -> NDArray[np.int64]:
        """[K + 1]: the port of each shape, and that of a stage that isn't known."""
        return np.append(self.table.port, len(self.family.ports)).astype(np.int64)

    @cached_property
    def _moved(self) -> tuple[Array, Array, Array, NDArray[np.int64]]:
        """[2, values, P + 1, P] each: seconds of a value and of its gradient between ports, inside a node and between
        nodes, at last from wherever that is the fastest; [2]: the latency of a message; and [values]: how many messages
        there are, with the gradient's."""
        share, times = shares(self.family.ports)
        ratio = self._traffic.samples / self.sets.pricing.problem.graph.samples
        latency, per_byte = self._traffic.links
        down = [value.forward.of(ratio * share, times) for value in self.sets.values]
        up = [value.backward.of(ratio * share.T, times.T) for value in self.sets.values]
        sizes = np.array([down, up]).reshape(2, len(down), *share.shape)
        downs, ups = (_from_any(per_byte[:, None, None, None] * size) for size in sizes)
        messages = [1 + (value.backward.growing + value.backward.shared > 0) for value in self.sets.values]
        return downs, ups, latency, np.array(messages, np.int64)

    @cached_property
    def _traffic(self) -> Traffic:
        samples = self.sets.pricing.problem.global_batch // self.table.micro_batches
        return Traffic(self.sets.pricing, self.family, samples, self.sets.values)

    @cached_property
    def least_sync(self) -> float:
        """What some stage does at the step's end at least: each block is in one."""
        used, prices = self.table.used, self.table.prices
        each = self._least(prices.sync) + prices.base_sync[:, None]
        each = np.where(self.real.any(axis=2), each, inf)[used].min(axis=0)
        return float(each.max())

    @cached_property
    def most_sync(self) -> float:
        """More than any stage does there."""
        used, prices = self.table.used, self.table.prices
        each = np.where(self.real, prices.sync, 0.0).max(axis=2).sum(axis=1) + prices.base_sync
        return float(each[used].max()) * (1 + 1e-9)

    @cached_property
    def _ahead(self) -> tuple[Array, Array, NDArray[np.uint64], Array, Array, Array]:
        """[sets] and [n]: the least work of a set's blocks and of each, in seconds × units; [values, words]: the
        blocks behind each value; [sets, U + 1]: what the blocks outside take at least; [U + 1, values] each, by the
        units that are left: from when a value is made on the least to the end of the last stage's turns, and to the
        longest path's."""
        table, n, c = self.table, self.least.shape[1], self.table.micro_batches
        used = table.used
        units = np.where(used, table.least_units, 1.0)
        work = np.where(used[:, None], self.least * units[:, None], inf).min(axis=0)
        ends, paths = np.zeros((table.all_units + 1, n)), np.zeros((table.all_units + 1, n))
        for left in range(table.all_units + 1):
            some = used & (units <= left)
            each = np.where(some[:, None], self.least, inf).min(axis=0)
            ends[left], paths[left] = c * each, each
            for maker, reader in sorted(self.sets.pairs, reverse=True):
                ends[left, maker] = max(ends[left, maker], each[maker] + ends[left, reader])
                paths[left, maker] = max(paths[left, maker], each[maker] + paths[left, reader])
        found = []
        for rows in (ends, paths):
            each = [rows[:, list(value.readers)].max(axis=1) * (1 - 1e-9) for value in self.sets.values]
            found.append(np.ascontiguousarray(np.array(each).reshape(len(each), table.all_units + 1).T))
        work *= 1 - 1e-12
        return self._summed(work), work, self.sets.behind, self._least_rest(), found[0], found[1]

    def _least_rest(self) -> Array:
        """[sets, U + 1]: see ``least_rest``; zeros where that isn't asked for."""
        table, sets = self.table, self.sets
        if not self.back:
            return np.zeros((len(sets.ideals), table.all_units + 1))
        sizes = np.unique(table.units[(table.prices_of >= 0).any(axis=1)])
        # Of each size the least of all its ways.
        ways = [np.unique(table.prices_of[table.units == size]) for size in sizes]
        seconds = self._summed(np.array([self.least[each[each >= 0]].min(axis=0) for each in ways])) * (1 - 1e-9)
        makers = np.zeros((sets.ideals.nodes, sets.ideals.nodes), np.bool_)
        for maker, reader in sets.pairs:
            makers[reader, maker] = True
        maker_of = np.array([value.maker for value in sets.values], np.int64)
        found: Array = least_rest(
            sets.ideals.masks, seconds, sizes.astype(np.int64), table.micro_batches, table.all_units, packed(makers),
            *sets.live, maker_of,
        )  # fmt: skip
        return found


def _from_any(seconds: Array) -> Array:
    """[2, values, P + 1, P] of [2, values, P, P]: with the least from any port to each, be it near or far."""
    least = seconds.min(axis=2, keepdims=True)
    least[0] = least.min(axis=0)
    return np.ascontiguousarray(np.concatenate([seconds, least], axis=2))
