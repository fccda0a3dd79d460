"""Stages of a graph for a problem: the best that is found with branches side by side.

For each way to deal out devices and each number of micro-batches c the programme gives the least longest path under a
limit of the slowest stage; the limit falls from answer to answer, as GraphPipe's bisection does, until none can be
better. What is compared is the sharper formula on the graph (``formula``). From the best of them, and from the best
chain, a climb goes on in small steps. That nothing is better is not proven.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from partita.cost.alike import alike
from partita.errors import PlanError
from partita.graph import Graph
from partita.planner.branches.bound import least_step
from partita.planner.branches.formula import graph_seconds
from partita.planner.branches.programme import Programme
from partita.planner.branches.traffic import Traffic, Value, behind, block_pairs, values
from partita.planner.branches.tree import Series, branches, order, tree
from partita.planner.joint.climb import Climb
from partita.planner.joint.engine import DEPTHS, Answer, Engine, Searched
from partita.planner.joint.formula import terms
from partita.planner.joint.plan import Solved, searched
from partita.planner.joint.price import Pricing
from partita.planner.joint.rows import base
from partita.planner.joint.search import STOPS, Found, is_stop
from partita.planner.joint.sharp import Turns
from partita.planner.joint.space import Family
from partita.planner.joint.stage_ways import Place, Places, StageWays
from partita.planner.joint.table import JointTable

# A limit falls at least by so much from answer to answer.
STEP = 2e-3
# Answers that a climb begins with, chains among them, that take up to so many times the best chain's seconds; and ends
# of climbs from which another goes on with more micro-batches under way.
CLIMBS, CHAINS, WITHIN, CLIMBS_ON = 8, 4, 1.1, 4


def listed_by_branch(graph: Graph) -> Graph | None:
    """The graph with its blocks branch by branch; None where it has no branches."""
    found = tree(len(graph.blocks), block_pairs(graph))
    if not branches(found):
        return None
    blocks = tuple(graph.blocks[at] for at in order(found))
    if blocks == tuple(graph.blocks):
        return graph
    place = {block.name: at for at, block in enumerate(blocks)}
    return replace(graph, blocks=blocks, ops=tuple(sorted(graph.ops, key=lambda op: place[op.block])))


class GraphSearch:
    """The search of one problem whose model has branches."""

    def __init__(self, engine: Engine, chains: Sequence[Answer], deadline: float):
        self.engine, self.pricing, self.chains, self.deadline = engine, engine.pricing, chains, deadline
        graph = self.pricing.problem.graph
        self.pairs = block_pairs(graph)
        self.tree: Series = tree(len(graph.blocks), self.pairs)
        self.values: tuple[Value, ...] = values(self.pricing)
        self.found: list[tuple[float, _Table, Places]] = []

    def best(self, below: float, most: int) -> list[Solved]:
        """The best answers, the fastest first, up to so many and under ``below`` seconds, each as of a search of its
        own. Out of time, and after Ctrl-C, those of what was found."""
        tables = sorted(self._tables(), key=lambda one: one[0])
        done = self._search(tables, below)
        for answer in self.chains:
            table = self._table(answer.family, answer.table.micro_batches, below)
            places = tuple(Place(one.start, one.stop, one.unit, one.shape) for one in answer.found.stages)
            self.found.append((table.seconds(places), table, places))
        climbed = self._climbed()
        ranked = sorted((seconds, at, table) for at, (seconds, table) in climbed.items() if seconds < below)
        bound = min((least for least, _, _ in tables), default=0.0)
        found = []
        for seconds, at, table in ranked[:most]:
            answer = table.answer(seconds, at)
            searched = Searched(answer, bound, False, len(tables), len(tables) - done)
            found.append(Solved(self.engine, searched, answer))
        return found

    def _search(self, tables: Sequence[tuple[float, Family, int]], below: float) -> int:
        """Finds answers of the tables that may have some under ``below`` seconds; how many of them it asked."""
        bound, done = below, 0
        try:
            for least, family, count in tables:
                if least >= bound or time.monotonic() > self.deadline:
                    break
                done += 1
                # One stage has no branches beside each other.
                if family.most_stages == 1:
                    continue
                for seconds, table, places in self._limits(family, count, bound):
                    self.found.append((seconds, table, places))
                    bound = min(bound, seconds)
        except STOPS as stop:
            self._stop(stop)
        return done

    def _climbed(self) -> dict[Places, tuple[float, _Table]]:
        """What climbs from the best answers end with, and what lies beside these."""
        climbed: dict[Places, tuple[float, _Table]] = {}
        starts = sorted(self.found, key=lambda one: one[0])[:CLIMBS]
        for depth in DEPTHS:
            ends: dict[Places, tuple[float, _Table, Places]] = {}
            for _, table, places in starts:
                deep = table.deep(depth)
                for number, (seconds, at) in enumerate(self._near(deep, places)):
                    if number == 0:
                        ends[at] = seconds, deep, at
                    # A longer warm-up that wins nothing holds more.
                    if at not in climbed or seconds < climbed[at][0] * (1 - STEP):
                        climbed[at] = seconds, deep
            starts = sorted(ends.values(), key=lambda one: one[0])[:CLIMBS_ON] or starts
        return climbed

    def _near(self, table: _Table, places: Places) -> list[tuple[float, Places]]:
        """The end of a climb and the best beside it; where there is no time for one, its beginning."""
        if time.monotonic() <= self.deadline:
            try:
                return table.climbed(places)
            except STOPS as stop:
                self._stop(stop)
        return [(table.seconds(places), places)]

    def _stop(self, stop: BaseException) -> None:
        """From here on nothing more is looked for."""
        if not is_stop(stop):
            raise stop
        self.deadline = 0.0

    def _tables(self) -> Iterator[tuple[float, Family, int]]:
        """The families and numbers of micro-batches, with a bound of each."""
        for family in self.pricing.families:
            for count in self.pricing.micro_batches(family):
                least = least_step(_plain(self.pricing, family, count), self.pairs)
                if least < inf:
                    yield least, family, count

    def _limits(self, family: Family, count: int, below: float) -> Iterator[tuple[float, _Table, Places]]:
        """Answers to one table, each under a smaller limit."""
        table = self._table(family, count, below)
        programme = Programme(table.ways, table.traffic, self.tree)
        limit, more = below / count, max(1, count - 1)
        while time.monotonic() < self.deadline and (answer := programme.least(limit)) is not None:
            path, places = answer
            slowest = programme.slowest(places, table.behind(places))
            seconds = table.seconds(places)
            if seconds < below:
                below = seconds
                yield seconds, table, places
            # A smaller limit makes no path shorter.
            limit = min(slowest * (1 - STEP), (below - path) / more * (1 - 1e-9))

    def _table(self, family: Family, count: int, below: float) -> _Table:
        table = _plain(self.pricing, family, count)
        ways = StageWays(table, base(table.prices, table.used), below / count, {})
        traffic = Traffic(self.pricing, family, self.pricing.problem.global_batch // count, self.values)
        return _Table(ways, family, traffic)


class _Table(Climb):
    """A table, and what stages of it take as a graph."""

    def __init__(self, ways: StageWays, family: Family, traffic: Traffic):
        super().__init__(ways)
        self.family, self.traffic = family, traffic

    def deep(self, depth: int) -> _Table:
        """The table with so many more micro-batches under way over each boundary."""
        ways = self.ways
        deep = StageWays(replace(self.table, depth=depth), ways.bases, ways.below, ways.rows)
        return _Table(deep, self.family, self.traffic)

    def behind(self, places: Places) -> list[int]:
        return behind(len(places), list(self.traffic.moved(places)))

    def step_seconds(self, turns: Sequence[Turns], places: Places, behind: Sequence[int]) -> float:
        ahead = [self.table.ahead(each) for each in behind]
        return graph_seconds(turns, self.traffic.moved(places), ahead, self.table.micro_batches)

    def answer(self, seconds: float, places: Places) -> Answer:
        """The stages with the ways that are best beside each other."""
        best, which = self.best_ways(seconds, places)
        stages = self.ways.chosen(places, self.behind(places), which)
        return Answer(self.family, self.table, Found(stages, best, terms(self.table, stages), 0))


def _plain(pricing: Pricing, family: Family, count: int) -> JointTable:
    """The table of a family without the stages that mix forms."""
    table = pricing.table(family, count)
    mixed = np.array([shape.mixed for shape in family.shapes])
    return replace(table, prices_of=np.where(mixed[:, None], -1, table.prices_of)) if mixed.any() else table


def branched(solved: Solved, below: float, most: int) -> list[Solved]:
    """The best stages with branches side by side, under ``below`` seconds; none where the model has no branches.

    ``solved``: the best chains of the problem.
    """
    pricing, deadline = solved.engine.pricing, solved.engine.deadline
    graph = listed_by_branch(pricing.problem.graph)
    if graph is None:
        return []
    if graph is not pricing.problem.graph:
        try:
            again = searched(_listed(pricing, graph), max(0.0, deadline - time.monotonic()))
        except (PlanError, KeyboardInterrupt):
            # Out of time before there was one, or Ctrl-C.
            return []
        if again is None:
            return branched_alone(pricing, below, most, deadline)
        if not again.searched.optimal:
            return []
        solved = again
    chains = (solved.best, *solved.engine.others(solved.best, WITHIN, CHAINS))
    return GraphSearch(solved.engine, chains, deadline).best(below, most)


def branched_alone(pricing: Pricing, below: float, most: int, deadline: float) -> list[Solved]:
    """The same where no chain of stages fits."""
    graph = listed_by_branch(pricing.problem.graph)
    if graph is None:
        return []
    if graph is not pricing.problem.graph:
        pricing = _listed(pricing, graph)
    return GraphSearch(Engine(pricing, deadline), (), deadline).best(below, most)


def _listed(pricing: Pricing, graph: Graph) -> Pricing:
    """The pricing of the same problem, with another order of its blocks."""
    inside = replace(pricing.problem, graph=graph)
    return Pricing(inside, alike(graph), pricing.devices, first=pricing.first)
