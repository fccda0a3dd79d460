"""The least seconds of all stages that a small model can be cut into, under the planner's formula on a graph.

All of them: every order of sets of blocks each of which reads none of a later one, every way to deal out the devices,
every shape and number of micro-batches, every warm-up of each stage, and the options of blocks that may be best. What a
stage takes is
``StageWays``' answer on a list in which its blocks are neighbours, in the model's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

from partita.cost.alike import alike
from partita.errors import Infeasible
from partita.graph.edges import paths_behind
from partita.planner.branches.formula import graph_seconds
from partita.planner.branches.orders import listed
from partita.planner.branches.search import branched, relisted
from partita.planner.branches.traffic import Traffic, block_pairs, values
from partita.planner.joint.plan import solve
from partita.planner.joint.price import Pricing
from partita.planner.joint.rows import base
from partita.planner.joint.stage_ways import Place, StageWays
from partita.problem import Problem
from tests.planner.branches.dags import SMALL, drawn

Stages = tuple[tuple[int, ...], ...]


def over_optimum(seed: int, most: int) -> tuple[float, float] | None:
    """The search's best answer and its bound, in terms of the best of all stages, for a random model of up to so many
    blocks on four devices, without tensor parallelism and recomputation; None where it is a chain or doesn't fit."""
    problem = replace(drawn(seed, (4, most), SMALL), global_batch=8, fix={"tp": 1, "recompute": "none"})
    try:
        solved = solve(problem)
    except Infeasible:
        return None
    found = branched(solved, inf, 1, list(relisted(solved, inf)))
    if not found:
        return None
    least = optimum(problem)
    return found[0].best.seconds / least, found[0].searched.bound_seconds / least


def optimum(problem: Problem) -> float:
    """Seconds of the best; infinite where none fits."""
    best, whole = inf, Pricing(problem, alike(problem.graph))
    count = len(problem.graph.blocks)

    @cache
    def priced(blocks: tuple[int, ...]) -> tuple[Pricing, int]:
        """The pricing of a list with these blocks as neighbours, and where they begin in it."""
        reach = _needed(problem, blocks)
        rest = [block for block in range(count) if block not in reach and block not in blocks]
        graph = listed(problem.graph, [*sorted(reach - set(blocks)), *blocks, *rest])
        return Pricing(replace(problem, graph=graph), alike(graph)), len(reach - set(blocks))

    @cache
    def table(blocks: tuple[int, ...], family: int, micro_batches: int) -> tuple[StageWays, int]:
        pricing, start = priced(blocks)
        found = pricing.unmixed(pricing.families[family], micro_batches)
        return StageWays(found, base(found.prices, found.used), inf, {}), start

    for number, family in enumerate(whole.families):
        for micro_batches in whole.micro_batches(family):
            plain = whole.unmixed(family, micro_batches)
            samples = problem.global_batch // micro_batches
            for stages in _stages(problem, min(family.most_stages, plain.all_units)):
                place = {block: at for at, block in enumerate(block for stage in stages for block in stage)}
                moved = [
                    replace(value, maker=place[value.maker], readers=tuple(place[one] for one in value.readers))
                    for value in values(whole)
                ]
                traffic = Traffic(whole, family, samples, tuple(moved))
                for shapes in _shapes(plain.units.tolist(), len(stages), plain.all_units):
                    places, unit = [], 0
                    for stage, shape in zip(stages, shapes, strict=True):
                        start = place[stage[0]]
                        places.append(Place(start, start + len(stage), unit, shape))
                        unit += int(plain.units[shape])
                    if any(plain.prices_of[one.shape, one.unit] < 0 for one in places):
                        continue
                    sent, far = traffic.moved(tuple(places))
                    later = [deep - 1 for deep in paths_behind(list(sent), len(places))]
                    for longer in _longer(later, list(sent), micro_batches):
                        ways = []
                        for stage, one, rest in zip(stages, places, longer, strict=True):
                            known, start = table(stage, number, micro_batches)
                            ways.append(known.ways(rest, Place(start, start + len(stage), one.unit, one.shape)))
                        ahead = [plain.ahead(rest) for rest in longer]
                        for chosen in product(*ways):
                            turns = [way[0] for way in chosen]
                            if micro_batches * max(f + b for f, b, _ in turns) < best:
                                best = min(best, graph_seconds(turns, sent, ahead, micro_batches, far))
    return best


def _longer(behind: list[int], edges: list[tuple[int, int]], most: int) -> Iterator[list[int]]:
    """As many stages behind each, and all of more with which they hold up to so many micro-batches."""
    makers = sorted({maker for maker, _ in edges})
    for more in product(*(range(behind[maker], max(1, most - 1) + behind[maker]) for maker in makers)):
        found = list(behind)
        for maker, one in zip(makers, more, strict=True):
            found[maker] = one
        if all(found[maker] > found[reader] for maker, reader in edges):
            yield found


def _stages(problem: Problem, most: int) -> Iterator[Stages]:
    """All orders of up to so many sets of blocks, each with what it reads before it; within each the model's order."""
    count, pairs = len(problem.graph.blocks), block_pairs(problem.graph)
    makers = [{maker for maker, reader in pairs if reader == block} for block in range(count)]

    def closed(done: frozenset[int]) -> Iterator[frozenset[int]]:
        """The larger sets with all that they read."""
        left = [block for block in range(count) if block not in done]
        for taken in product((False, True), repeat=len(left)):
            more = done | {block for block, one in zip(left, taken, strict=True) if one}
            if more != done and all(makers[block] <= more for block in more):
                yield more

    def after(done: frozenset[int], room: int) -> Iterator[Stages]:
        if len(done) == count:
            yield ()
        elif room:
            for more in closed(done):
                for rest in after(more, room - 1):
                    yield (tuple(sorted(more - done)), *rest)

    yield from after(frozenset(), most)


def _shapes(units: list[int], stages: int, total: int) -> Iterator[tuple[int, ...]]:
    """Shapes of so many stages that use all units."""
    if stages == 0:
        if total == 0:
            yield ()
        return
    for shape, width in enumerate(units):
        if width <= total - (stages - 1):
            for rest in _shapes(units, stages - 1, total - width):
                yield (shape, *rest)


def _needed(problem: Problem, blocks: tuple[int, ...]) -> set[int]:
    """All that these blocks need, and they themselves."""
    found, pairs = set(blocks), block_pairs(problem.graph)
    for maker, reader in sorted(pairs, reverse=True):
        if reader in found:
            found.add(maker)
    return found
