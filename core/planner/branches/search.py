"""Stages of a graph for a problem: the best that is found with branches side by side.

For each way to deal out devices and each number of micro-batches c the programme gives the least longest path under a
limit of the slowest stage; the limit falls from answer to answer, as GraphPipe's bisection does, until none can be
better. What is compared is the sharper formula on the graph (``formula``). From the best of them, and from the best
chains, a climb goes on in small steps. Stages are runs of a list of the blocks: the programme's is branch by branch,
chains and climbs have some others, too (``orders``). That nothing is better is not proven.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

import numpy as np

from partita.cost.alike import alike
from partita.graph import Graph
from partita.graph.edges import paths_behind
from partita.planner.branches.bound import least_step
from partita.planner.branches.formula import graph_seconds
from partita.planner.branches.orders import listed, orders
from partita.planner.branches.programme import Programme
from partita.planner.branches.traffic import Traffic, Value, block_pairs, values
from partita.planner.branches.tree import Series, branches, order, tree
from partita.planner.joint.climb import Climb
from partita.planner.joint.engine import DEPTHS, TIE, Answer, Engine, Searched
from partita.planner.joint.formula import terms
from partita.planner.joint.plan import Solved
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
    return listed(graph, order(found)) if branches(found) else None


class GraphSearch:
    """The search of one problem whose model has branches, among the runs of its list of blocks."""

    def __init__(self, engine: Engine, chains: Sequence[Answer], deadline: float):
        self.engine, self.pricing, self.chains, self.deadline = engine, engine.pricing, chains, deadline
        graph = self.pricing.problem.graph
        self.pairs = block_pairs(graph)
        self.tree: Series = tree(len(graph.blocks), self.pairs)
        self.values: tuple[Value, ...] = values(self.pricing)
        self.found: list[tuple[float, _Table, Places]] = []
        self.done = 0

    def best(self, below: float, most: int) -> list[Solved]:
        """The best answers, the fastest first, up to so many and under ``below`` seconds, each as of a search of its
        own. Out of time, and after Ctrl-C, those of what was found."""
        return _ranked([self], below, most)

    def ends(self, below: float) -> dict[Places, tuple[float, _Table]]:
        """The same, all of them, by their stages."""
        if self.by_branch:
            self._search(below)
        for answer in self.chains:
            table = self._table(answer.family, answer.table.micro_batches, below)
            places = tuple(Place(one.start, one.stop, one.unit, one.shape) for one in answer.found.stages)
            self.found.append((table.seconds(places), table, places))
        return {at: (seconds, table) for at, (seconds, table) in self._climbed().items() if seconds < below}

    @cached_property
    def by_branch(self) -> bool:
        """Whether there are branches, and the blocks are listed as the tree has them."""
        return branches(self.tree) and order(self.tree) == list(range(len(self.pricing.problem.graph.blocks)))

    @cached_property
    def tables(self) -> list[tuple[float, Family, int]]:
        """The families and numbers of micro-batches, with a bound of each, the least first."""
        return sorted(self._tables(), key=lambda one: one[0])

    @property
    def bound_seconds(self) -> float:
        """No stages take less, however the blocks are listed."""
        return self.tables[0][0] if self.tables else 0.0

    def _search(self, below: float) -> None:
        """Finds answers of the tables that may have some under ``below`` seconds."""
        bound = below
        try:
            for least, family, count in self.tables:
                if least >= bound or time.monotonic() > self.deadline:
                    break
                self.done += 1
                # One stage has no branches beside each other.
                if family.most_stages == 1:
                    continue
                for seconds, table, places in self._limits(family, count, bound):
                    self.found.append((seconds, table, places))
                    bound = min(bound, seconds)
        except STOPS as stop:
            self._stop(stop)

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

    def same(self, places: Places) -> object:
        """Equal for the same stages, in whatever order their blocks are listed."""
        blocks, shapes = self.traffic.pricing.problem.graph.blocks, self.family.shapes
        stages = ((frozenset(b.name for b in blocks[p.start : p.stop]), p.unit, shapes[p.shape]) for p in places)
        return frozenset(stages), self.family.unit, self.table.micro_batches

    def deep(self, depth: int) -> _Table:
        """The table with so many more micro-batches under way over each boundary."""
        ways = self.ways
        deep = StageWays(replace(self.table, depth=depth), ways.bases, ways.below, ways.rows)
        return _Table(deep, self.family, self.traffic)

    def behind(self, places: Places) -> list[int]:
        """For each stage how many lie behind it on the longest path."""
        return [stages - 1 for stages in paths_behind(list(self.traffic.moved(places)), len(places))]

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


def relisted(solved: Solved, below: float) -> Iterator[Solved]:
    """The best chains of the same problem on the same devices with its blocks listed in other orders, those under
    ``below`` seconds, while there is time; none for a model that is a chain."""
    pricing, deadline = solved.engine.pricing, solved.engine.deadline
    for graph in _lists(pricing.problem.graph):
        if graph is pricing.problem.graph:
            continue
        engine = Engine(_listed(pricing, graph), deadline)
        found = engine.search(below)
        if not found.optimal:
            if time.monotonic() <= deadline:
                raise KeyboardInterrupt
            return
        if found.best is not None:
            yield Solved(engine, found, found.best)


def branched(solved: Solved, below: float, most: int, others: Sequence[Solved] = ()) -> list[Solved]:
    """The best stages with branches side by side, under ``below`` seconds; none where the model has no branches.

    ``solved``: the best chains of the problem; ``others``: the same with the blocks listed in other orders.
    """
    pricing, deadline = solved.engine.pricing, solved.engine.deadline
    if len(_lists(pricing.problem.graph)) == 1 and listed_by_branch(pricing.problem.graph) is None:
        return []
    searches = []
    for one in (solved, *others):
        search = GraphSearch(one.engine, (one.best,), deadline)
        if search.by_branch:
            search.chains = (one.best, *one.engine.others(one.best, WITHIN, CHAINS))
        searches.append(search)
    if not any(search.by_branch for search in searches):
        searches += _alone(pricing, deadline)
    return _ranked(searches, below, most)


def branched_alone(pricing: Pricing, below: float, most: int, deadline: float) -> list[Solved]:
    """The same where no chain of stages fits."""
    return _ranked(_alone(pricing, deadline), below, most)


def _alone(pricing: Pricing, deadline: float) -> list[GraphSearch]:
    """The search with the blocks listed branch by branch, without chains."""
    graph = listed_by_branch(pricing.problem.graph)
    return [] if graph is None else [GraphSearch(Engine(_listed(pricing, graph), deadline), (), deadline)]


def _ranked(searches: Sequence[GraphSearch], below: float, most: int) -> list[Solved]:
    """The best answers of all searches."""
    found: dict[object, tuple[float, GraphSearch, _Table, Places]] = {}
    for search in searches:
        for places, (seconds, table) in search.ends(below).items():
            known = found.get(key := table.same(places))
            if known is None or seconds < known[0] * (1 - TIE):
                found[key] = seconds, search, table, places
    whole = next((search for search in searches if search.by_branch), searches[0] if searches else None)
    ranked = []
    for seconds, search, table, places in sorted(found.values(), key=lambda one: one[0])[:most]:
        assert whole is not None
        answer, considered = table.answer(seconds, places), len(whole.tables)
        outcome = Searched(answer, whole.bound_seconds, False, considered, considered - whole.done)
        ranked.append(Solved(search.engine, outcome, answer))
    return ranked


def _lists(graph: Graph) -> list[Graph]:
    """The graph with its blocks in several orders, itself among them."""
    return [listed(graph, blocks) for blocks in orders(len(graph.blocks), block_pairs(graph))]


def _listed(pricing: Pricing, graph: Graph) -> Pricing:
    """The pricing of the same problem, with another order of its blocks."""
    if graph is pricing.problem.graph:
        return pricing
    inside = replace(pricing.problem, graph=graph)
    return Pricing(inside, alike(graph), pricing.devices, first=pricing.first)
