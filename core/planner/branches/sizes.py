"""Stages with numbers of micro-batches of their own: a climb from stages that all have the same.

GraphPipe (Jeon et al., 2025, section 5) lets stages that read each other have micro-batches in a ratio of powers of 2.
A stage whose turns are short of work, as one of many small kernels, wins by larger ones, while the others, with small
ones, fill the pipeline sooner. Blocks and devices of the stages stay as they are; how their blocks run is chosen anew
for what the stage holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import inf

from partita.plan import Plan
from partita.planner.branches.played import played_seconds
from partita.planner.branches.traffic import Traffic, Value, values
from partita.planner.joint.engine import TIE, Answer
from partita.planner.joint.price import Pricing
from partita.planner.joint.rows import Base, base
from partita.planner.joint.sharp import Moved, Turns
from partita.planner.joint.space import Family
from partita.planner.joint.stage_ways import Places, StageWays, places_of
from partita.planner.joint.table import Chosen, JointTable
from partita.schedules import Argument, Schedule, Turn, find, in_flight

Counts = tuple[int, ...]
# Tables of a pricing's family by the number of micro-batches, with what any stage takes at its fastest.
Bases = dict[tuple[Pricing, Family, int], tuple[JointTable, Base]]
# Of stages up to so many any two are tried together.
PAIRS = 8
# Orders in which stages may have unlike numbers, and which the search lists with a warm-up.
SCHEDULES = ("1f1b", "kfkb")


def plan_seconds(pricing: Pricing, answer: Answer, plan: Plan, below: float = inf) -> float:
    """Seconds of a step of an answer's plan, turn by turn; infinite where a stage doesn't fit, or alone takes ``below``
    seconds. 0 where that says nothing of the simulation: for other orders, and for stages that share nodes in part."""
    if plan.schedule not in SCHEDULES:
        return 0.0
    counts = tuple(stage.micro_batches for stage in plan.stages)
    sizes = Sizes(pricing, answer, find(plan.schedule), plan.order.arguments, below, 2 * sum(counts))
    return 0.0 if sizes.astride else sizes.seconds(counts)


@dataclass
class Sizes:
    """What the stages of an answer take with any numbers of micro-batches, in one order; ``below``: those that take
    less than so many seconds a step; ``left``: turns that may still be played; ``bases``: may be shared with others.
    """

    pricing: Pricing
    answer: Answer
    schedule: Schedule
    arguments: Mapping[str, Argument]
    below: float
    left: int
    bases: Bases = field(default_factory=dict)
    seen: dict[Counts, float] = field(default_factory=dict)
    _ways: dict[int, StageWays | None] = field(default_factory=dict)
    _traffic: dict[int, Traffic] = field(default_factory=dict)

    def climb(self, counts: Counts) -> list[tuple[float, Counts]]:
        """All that were looked at on the way from these counts and take less, the fastest first, with their seconds."""
        first = best = self.seconds(counts)
        better: Counts | None = counts
        while better is not None:
            counts, better = better, None
            for other in self.neighbours(counts):
                if other not in self.seen and (took := self.seconds(other)) < best * (1 - TIE):
                    best, better = took, other
        return sorted((took, at) for at, took in self.seen.items() if took < first * (1 - TIE))

    def neighbours(self, counts: Counts) -> Iterator[Counts]:
        """Twice and half as many for each group of stages."""
        for group in self.groups:
            if all(counts[stage] % 2 == 0 for stage in group):
                yield tuple(count // 2 if stage in group else count for stage, count in enumerate(counts))
            yield tuple(count * 2 if stage in group else count for stage, count in enumerate(counts))

    def seconds(self, counts: Counts) -> float:
        """The step's seconds; infinite where the samples can't be divided so, where a stage doesn't fit, and where too
        many turns were played already."""
        if counts not in self.seen:
            self.seen[counts] = self._seconds(counts)
        return self.seen[counts]

    def chosen(self, counts: Counts) -> list[tuple[JointTable, Chosen]]:
        """The stages with the ways of their blocks, each with its own table."""
        orders, found = self._orders(counts), list[tuple[JointTable, Chosen]]()
        for stage, place in enumerate(self.places):
            ways = self._of(counts[stage])
            assert ways is not None
            (one,) = ways.chosen((place,), (in_flight(orders[stage]) - 1,), (0,))
            found.append((ways.table, one))
        return found

    @cached_property
    def places(self) -> Places:
        return places_of(self.answer.found.stages)

    @cached_property
    def astride(self) -> bool:
        """Whether stages that read each other share some nodes and not all: what they send inside one counts as between
        nodes here."""
        traffic = self._messages(self.answer.table.micro_batches)
        nodes = [traffic.nodes(place.unit, place.shape) for place in self.places]
        return any(
            nodes[maker] & nodes[reader] and len(nodes[maker] | nodes[reader]) > 1 for maker, reader in self.edges
        )

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (maker, reader) of stages."""
        return tuple(self._messages(self.answer.table.micro_batches).moved(self.places)[0])

    @cached_property
    def groups(self) -> list[frozenset[int]]:
        """Each stage, with all that lead to it, with all that it leads to, those of one shape, all; of few any two."""
        stages = range(len(self.places))
        before, after = ({stage: {stage} for stage in stages} for _ in range(2))
        for maker, reader in sorted(self.edges, key=lambda edge: edge[1]):
            before[reader] |= before[maker]
        for maker, reader in sorted(self.edges, reverse=True):
            after[maker] |= after[reader]
        shapes = [place.shape for place in self.places]
        found = [{stage} for stage in stages]
        found += [*before.values(), *after.values()]
        found += [{stage for stage in stages if shapes[stage] == shape} for shape in sorted(set(shapes))]
        found += [set(stages), *(set(pair) for pair in combinations(stages, 2) if len(stages) <= PAIRS)]
        return list(dict.fromkeys(map(frozenset, found)))

    def _seconds(self, counts: Counts) -> float:
        played = 2 * sum(counts)
        if any(self.pricing.problem.global_batch % count for count in counts) or played > self.left:
            return inf
        if any(self._of(count) is None for count in counts):
            return inf
        orders, took = self._orders(counts), list[Turns]()
        for stage, place in enumerate(self.places):
            ways = self._of(counts[stage])
            assert ways is not None
            known = ways.ways(in_flight(orders[stage]) - 1, place)
            if not known:
                return inf
            took.append(known[0][0])
        self.left -= played
        far: frozenset[tuple[int, int]] = frozenset()
        moved: dict[tuple[int, int], Moved] = {}
        for maker, reader in self.edges:
            found, far = self._messages(max(counts[maker], counts[reader])).moved(self.places)
            moved[maker, reader] = found[maker, reader]
        return played_seconds(orders, counts, took, moved, far)

    def _orders(self, counts: Counts) -> dict[int, list[Turn]]:
        return self.schedule.on(counts, self.edges, self.arguments)

    def _of(self, count: int) -> StageWays | None:
        """What stages take with so many micro-batches; None where no shape can divide the samples so."""
        if count not in self._ways:
            self._ways[count] = self._stage_ways(count)
        return self._ways[count]

    def _stage_ways(self, count: int) -> StageWays | None:
        pricing, family = self.pricing, self.answer.family
        if count not in pricing.micro_batches(family):
            return None
        if (pricing, family, count) not in self.bases:
            # Without a longer warm-up a stage holds one more than there are behind it.
            table = pricing.table(family, count, "1f1b", 0)
            self.bases[pricing, family, count] = table, base(table.prices, table.used)
        return StageWays(*self.bases[pricing, family, count], self.below / count, {})

    def _messages(self, count: int) -> Traffic:
        """What crosses in messages that have that part of the batch."""
        if count not in self._traffic:
            batch = self.pricing.problem.global_batch
            self._traffic[count] = Traffic(self.pricing, self.answer.family, batch // count, self._values)
        return self._traffic[count]

    @cached_property
    def _values(self) -> tuple[Value, ...]:
        return values(self.pricing)
