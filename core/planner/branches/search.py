"""Stages of a graph for a problem: the best that is found with branches side by side.

For each way to deal out devices and each number of micro-batches c the programme gives the least longest path under a
limit of the slowest stage; the limit falls from answer to answer, as GraphPipe's bisection does, until none can be
better. What is compared is the sharper formula on the graph (``formula``). From the best of them, and from the best
chains, a climb goes on in small steps. Stages are runs of a list of the blocks: the programme's is branch by branch,
chains and climbs have some others, too (``orders``). How much better any stages may be is proven as far as little work
goes (``proving``); candidates that come up there are looked at, too.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from math import inf

from partita.cost.alike import alike
from partita.graph import Graph
from partita.graph.edges import paths_behind
from partita.planner.branches.bound import least_step
from partita.planner.branches.formula import graph_seconds
from partita.planner.branches.orders import listed, orders, turned
from partita.planner.branches.programme import Programme
from partita.planner.branches.proof import Candidate, longest
from partita.planner.branches.proving import Prover
from partita.planner.branches.sets import Sets
from partita.planner.branches.traffic import Traffic, Value, block_pairs, values
from partita.planner.branches.tree import Series, branches, order, tree
from partita.planner.joint.climb import Climb
from partita.planner.joint.engine import DEPTHS, TIE, Answer, Engine, Searched
from partita.planner.joint.formula import terms
from partita.planner.joint.plan import Solved
from partita.planner.joint.price import Pricing
from partita.planner.joint.rows import Row, base
from partita.planner.joint.search import STOPS, Found, is_stop
from partita.planner.joint.sharp import Turns
from partita.planner.joint.space import Family
from partita.planner.joint.stage_ways import Places, StageWays, places_of

# A limit falls at least by so much from answer to answer.
STEP = 2e-3
# Answers that a climb begins with, the first of them one for each warm-up; chains among them, that take up to so many
# times the best chain's seconds.
CLIMBS, IN_ALL, CHAINS, WITHIN = 8, 3, 4, 1.1
# Tables that are looked through for some that don't mix forms.
MANY = 40
# Answers at their end whose stages may get longer warm-ups of their own.
RAISED = 8
# A proof goes through so many sets of blocks at most, and does so much work; for each so much of it one candidate is
# looked at.
SETS, WORK, LOOK = 20_000, 2_000_000, 250_000
# How often the best answer's stages list their blocks in another order.
TURNED = 4


def listed_by_branch(graph: Graph) -> Graph | None:
    """The graph with its blocks branch by branch; None where it has no branches."""
    found = tree(len(graph.blocks), block_pairs(graph))
    return listed(graph, order(found)) if branches(found) else None


# A family, a number of micro-batches, and stages.
Start = tuple[Family, int, Places]


def _start(answer: Answer) -> Start:
    return answer.family, answer.table.micro_batches, places_of(answer.found.stages)


class GraphSearch:
    """The search of one problem whose model has branches, among the runs of its list of blocks."""

    def __init__(self, engine: Engine, starts: Sequence[Start], deadline: float):
        self.engine, self.pricing, self.starts, self.deadline = engine, engine.pricing, starts, deadline
        graph = self.pricing.problem.graph
        self.pairs = block_pairs(graph)
        self.tree: Series = tree(len(graph.blocks), self.pairs)
        self.values: tuple[Value, ...] = values(self.pricing)
        # Seconds, the warm-up that they take, and all that may be.
        self.found: list[tuple[float, _Table, list[_Table], Places]] = []
        self.done = 0

    def best(self, below: float, most: int) -> list[Solved]:
        """The best answers, the fastest first, up to so many and under ``below`` seconds, each as of a search of its
        own. Out of time, and after Ctrl-C, those of what was found."""
        return _ranked([self], below, most, WORK)

    def ends(self, below: float) -> dict[Places, tuple[float, _Table]]:
        """The same, all of them, by their stages."""
        if self.by_branch:
            self._search(below)
        for family, count, places in self.starts:
            tables = self.tables_of(family, count, below)
            self.found.append((*_deep_enough(tables, places), tables, places))
        return {at: (seconds, table) for at, (seconds, table) in self._climbed().items() if seconds < below}

    @cached_property
    def by_branch(self) -> bool:
        """Whether there are branches, and the blocks are listed as the tree has them."""
        return branches(self.tree) and order(self.tree) == list(range(len(self.pricing.problem.graph.blocks)))

    @cached_property
    def tables(self) -> list[tuple[float, Family, int]]:
        """The families and numbers of micro-batches, with a bound of each, the least first."""
        return sorted(self._tables(), key=lambda one: one[0])

    def among(self, blocks: Sequence[int], start: Start) -> GraphSearch:
        """The search of the same problem with its blocks listed so, that climbs from this start alone."""
        pricing = _listed(self.pricing, listed(self.pricing.problem.graph, blocks))
        found = GraphSearch(Engine(pricing, self.deadline), (start,), self.deadline)
        found.by_branch = False
        return found

    @property
    def bound_seconds(self) -> float:
        """No stages take less, however the blocks are listed."""
        return self.tables[0][0] if self.tables else 0.0

    @property
    def bound_of_own_sizes(self) -> float:
        """The same for stages that each have their own number of micro-batches."""
        pricing = self.pricing
        bounds = (
            least_step((pricing.unmixed(family, count) for count in pricing.micro_batches(family)), self.pairs)
            for family in pricing.families
        )
        return min(bounds, default=0.0)

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
                for one in self._limits(family, count, bound):
                    self.found.append(one)
                    bound = min(bound, one[0])
        except STOPS as stop:
            self.stop(stop)

    def _climbed(self) -> dict[Places, tuple[float, _Table]]:
        """What climbs from the best answers end with, and what lies beside these."""
        climbed: dict[Places, tuple[float, _Table]] = {}
        starts = sorted(self.found, key=lambda one: one[0])[:CLIMBS]
        for number, (_, own, tables, places) in enumerate(starts):
            for table in tables if number < IN_ALL else (own,):
                for seconds, at in self._near(table, places):
                    # A longer warm-up that wins nothing holds more.
                    if at not in climbed or seconds < climbed[at][0] * (1 - TIE):
                        climbed[at] = seconds, table
        for at, (_, table) in heapq.nsmallest(RAISED, climbed.items(), key=lambda one: one[1][0]):
            climbed[at] = table.raised(at), table
        # A climb may lead away from what is better by some with warm-ups of its own.
        for seconds, _, tables, places in starts[:1]:
            best = min([seconds, *(one[0] for one in climbed.values())])
            for table in tables:
                if (took := table.raised(places)) < best * (1 - STEP):
                    best, climbed[places] = took, (took, table)
        return climbed

    def _near(self, table: _Table, places: Places) -> list[tuple[float, Places]]:
        """The end of a climb and the best beside it; where there is no time for one, its beginning."""
        if time.monotonic() <= self.deadline:
            try:
                return table.climbed(places)
            except STOPS as stop:
                self.stop(stop)
        return [(table.seconds(places), places)]

    def stop(self, stop: BaseException) -> None:
        """From here on nothing more is looked for."""
        if not is_stop(stop):
            raise stop
        self.deadline = 0.0

    def _tables(self) -> Iterator[tuple[float, Family, int]]:
        """The families and numbers of micro-batches, with a bound of each."""
        for family in self.pricing.families:
            for count in self.pricing.micro_batches(family):
                least = least_step([self.pricing.unmixed(family, count)], self.pairs)
                if least < inf:
                    yield least, family, count

    def _limits(self, family: Family, count: int, below: float) -> Iterator[tuple[float, _Table, list[_Table], Places]]:
        """Answers to one table, each under a smaller limit."""
        tables = self.tables_of(family, count, below)
        table = tables[0]
        # A longer warm-up holds more: what the programme says of stages without one, no stages go under.
        programme = Programme(table.ways, table.traffic, self.tree)
        limit, more = below / count, max(1, count - 1)
        while time.monotonic() < self.deadline and (answer := programme.least(limit)) is not None:
            path, places = answer
            slowest = programme.slowest(places, table.behind(places))
            seconds, deep = _deep_enough(tables, places)
            if seconds < below:
                below = seconds
                yield seconds, deep, tables, places
            # A smaller limit makes no path shorter.
            limit = min(slowest * (1 - STEP), (below - path) / more * (1 - 1e-9))

    def tables_of(self, family: Family, count: int, below: float) -> list[_Table]:
        """The tables of a family and a number of micro-batches, one for each length of the warm-up."""
        table = self.pricing.unmixed(family, count)
        bases, rows = base(table.prices, table.used), dict[tuple[int, int, int, bool], Row]()
        traffic = Traffic(self.pricing, family, self.pricing.problem.global_batch // count, self.values)
        ways = [StageWays(replace(table, depth=depth), bases, below / count, rows) for depth in DEPTHS]
        return [_Table(each, family, traffic) for each in ways]


class _Table(Climb):
    """A table, and what stages of it take as a graph."""

    def __init__(self, ways: StageWays, family: Family, traffic: Traffic):
        super().__init__(ways)
        self.family, self.traffic = family, traffic
        self._raised: dict[Places, list[int]] = {}

    def same(self, places: Places) -> object:
        """Equal for the same stages, in whatever order their blocks are listed."""
        blocks, shapes = self.traffic.pricing.problem.graph.blocks, self.family.shapes
        stages = ((frozenset(b.name for b in blocks[p.start : p.stop]), p.unit, shapes[p.shape]) for p in places)
        return frozenset(stages), self.family.unit, self.table.micro_batches

    def behind(self, places: Places) -> list[int]:
        """For each stage how many lie behind it on the longest path, or as many as ``raised`` says."""
        if places in self._raised:
            return self._raised[places]
        moved, _ = self.traffic.moved(places)
        return [stages - 1 for stages in paths_behind(list(moved), len(places))]

    def raised(self, places: Places) -> float:
        """Gives single stages longer warm-ups where that wins something and fits, as if more stages lay behind them;
        the seconds."""
        best = self.seconds(places)
        better: list[int] | None = self.behind(places) if best < inf else None
        while better is not None:
            behind, better = better, None
            for other in self._longer(places, behind):
                if (took := self.seconds(places, behind=other)) < best * (1 - STEP):
                    best, better, self._raised[places] = took, other, other
                    break
        return best

    def _longer(self, places: Places, behind: Sequence[int]) -> Iterator[list[int]]:
        """One or two more behind a stage, and those that it reads from before it."""
        moved, _ = self.traffic.moved(places)
        for stage in sorted({maker for maker, _ in moved}):
            for more in (1, 2):
                found = list(behind)
                found[stage] += more
                for maker, reader in sorted(moved, reverse=True):
                    found[maker] = max(found[maker], found[reader] + 1)
                if max(found) < longest(self.table) and self.table.ahead(found[stage] - 1) < self.table.micro_batches:
                    yield found

    def depths(self, places: Places) -> tuple[int, ...] | None:
        """Of each stage, as kFkB has it; None where all are the table's."""
        if places not in self._raised:
            return None
        held, found = [self.table.held(behind) for behind in self._raised[places]], [0] * len(places)
        readers: dict[int, list[int]] = {}
        for maker, reader in self.traffic.moved(places)[0]:
            readers.setdefault(maker, []).append(held[reader])
        for maker, behind in readers.items():
            found[maker] = max(0, held[maker] - max(behind) - 1)
        return tuple(found)

    def step_seconds(self, turns: Sequence[Turns], places: Places, behind: Sequence[int]) -> float:
        ahead, (moved, far) = [self.table.ahead(each) for each in behind], self.traffic.moved(places)
        return graph_seconds(turns, moved, ahead, self.table.micro_batches, far)

    def answer(self, seconds: float, places: Places) -> Answer:
        """The stages with the ways that are best beside each other."""
        best, which = self.best_ways(seconds, places)
        stages = self.ways.chosen(places, self.behind(places), which)
        return Answer(self.family, self.table, Found(stages, best, terms(self.table, stages), 0), self.depths(places))


def _deep_enough(tables: Sequence[_Table], places: Places) -> tuple[float, _Table]:
    """The least seconds of these stages, and the shortest warm-up with which they take about as long."""
    took = [table.seconds(places) for table in tables]
    least = min(took) * (1 + STEP)
    return next((seconds, table) for seconds, table in zip(took, tables, strict=True) if seconds <= least)


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


def branched(solved: Solved, below: float, most: int, others: Sequence[Solved] = (), work: int = WORK) -> list[Solved]:
    """The best stages with branches side by side, under ``below`` seconds; none where the model has no branches.

    ``solved``: the best chains of the problem; ``others``: the same with the blocks listed in other orders; ``work``:
    what the proof may take, in steps of its inner loop, some ten million a second.
    """
    pricing, deadline = solved.engine.pricing, solved.engine.deadline
    blocks, pairs = len(pricing.problem.graph.blocks), block_pairs(pricing.problem.graph)
    if len(orders(blocks, pairs)) == 1 and not branches(tree(blocks, pairs)):
        return []
    searches = []
    for one in (solved, *others):
        search = GraphSearch(one.engine, (_start(one.best),), deadline)
        if any(one.best.family.shapes[stage.shape].mixed for stage in one.best.found.stages):
            # Stages of a graph mix no forms.
            search.starts = list(map(_start, islice(one.engine.others(one.best, inf, MANY), CHAINS)))
        elif search.by_branch:
            search.starts = list(map(_start, (one.best, *one.engine.others(one.best, WITHIN, CHAINS))))
        searches.append(search)
    if not any(search.by_branch for search in searches):
        searches += _alone(pricing, deadline)
    return _ranked(searches, below, most, work)


def branched_alone(pricing: Pricing, below: float, most: int, deadline: float) -> list[Solved]:
    """The same where no chain of stages fits."""
    return _ranked(_alone(pricing, deadline), below, most, WORK)


def _alone(pricing: Pricing, deadline: float) -> list[GraphSearch]:
    """The search with the blocks listed branch by branch, without chains."""
    graph = listed_by_branch(pricing.problem.graph)
    return [] if graph is None else [GraphSearch(Engine(_listed(pricing, graph), deadline), (), deadline)]


def _ranked(searches: Sequence[GraphSearch], below: float, most: int, work: int) -> list[Solved]:
    """The best answers of all searches, one for each number of micro-batches and warm-up: others of the same take about
    as long, in simulation too."""
    found: _Ends = {}
    for search in searches:
        _gather(found, search, below)
    _turned(found, below)
    whole = next((search for search in searches if search.by_branch), searches[0] if searches else None)
    bound = 0.0 if whole is None else _proven(found, whole, below, work)
    ranked: dict[tuple[int, int], Solved] = {}
    for seconds, search, table, places in sorted(found.values(), key=lambda one: one[0]):
        alone = table.table.micro_batches, table.table.depth
        if len(ranked) == most or alone in ranked:
            continue
        assert whole is not None
        answer, considered = table.answer(seconds, places), len(whole.tables)
        outcome = Searched(answer, bound, False, considered, considered - whole.done)
        ranked[alone] = Solved(search.engine, outcome, answer)
    return list(ranked.values())


# The best of each set of stages, in whatever order their blocks are listed: seconds, and what it is from.
_Ends = dict[object, tuple[float, GraphSearch, _Table, Places]]


def _gather(found: _Ends, search: GraphSearch, below: float) -> None:
    """Adds what a search ends with, where it is new or better."""
    for places, (seconds, table) in search.ends(below).items():
        known = found.get(key := table.same(places))
        if known is None or seconds < known[0] * (1 - TIE):
            found[key] = seconds, search, table, places


def _turned(found: _Ends, below: float) -> None:
    """Goes on from the best answer while that leads on, with the blocks of its stages listed in another order, so that
    others of them may go to another stage."""
    for _ in range(TURNED):
        if not found:
            return
        best, search, table, places = min(found.values(), key=lambda one: one[0])
        runs = [range(place.start, place.stop) for place in places]
        start = table.family, table.table.micro_batches, places
        _gather(found, search.among(turned(runs, search.pairs), start), below)
        if min(one[0] for one in found.values()) >= best * (1 - TIE):
            return


def _proven(found: _Ends, whole: GraphSearch, below: float, work: int) -> float:
    """What no stages take less than, as far as that is proven with so much work; the best candidates are added."""
    best = min([below, *(one[0] for one in found.values())])
    if best == inf or time.monotonic() > whole.deadline:
        return whole.bound_seconds
    sets = Sets.of(whole.pricing, SETS)
    if sets is None:
        return whole.bound_seconds
    judged = 0

    def judge(family: Family, count: int, candidate: Candidate) -> float:
        nonlocal judged
        judged += 1
        if judged <= work // LOOK:
            _gather(found, whole.among(candidate.blocks, (family, count, candidate.places)), below)
        return min([below, *(one[0] for one in found.values())])

    try:
        return Prover(sets, whole.tables, work, whole.deadline).bound(best, judge)
    except STOPS as stop:
        whole.stop(stop)
        return whole.bound_seconds


def _lists(graph: Graph) -> list[Graph]:
    """The graph with its blocks in several orders, itself among them."""
    return [listed(graph, blocks) for blocks in orders(len(graph.blocks), block_pairs(graph))]


def _listed(pricing: Pricing, graph: Graph) -> Pricing:
    """The pricing of the same problem, with another order of its blocks."""
    if graph is pricing.problem.graph:
        return pricing
    inside = replace(pricing.problem, graph=graph)
    return Pricing(inside, alike(graph), pricing.devices, first=pricing.first)
