"""The programme over the tree against all stages that it may choose among, and the formula against queues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf
from random import Random

import networkx as nx
import numpy as np
import pytest

from partita.graph.edges import paths_behind
from partita.planner.branches.bound import least_step
from partita.planner.branches.formula import graph_seconds
from partita.planner.branches.programme import Programme
from partita.planner.branches.tree import Parallel, Series, order, tree
from partita.planner.joint.rows import base
from partita.planner.joint.sharp import pipeline_seconds
from partita.planner.joint.stage_ways import Place, StageWays
from partita.planner.joint.table import JointTable, Prices
from tests.planner.joint.tables import Sizes, random_table

SIZES = Sizes(blocks=(3, 6), units=(2, 4), shapes=(1, 3), options=(1, 2))


@dataclass
class Moves:
    """Bytes of a run of blocks, there and back, with samples and without; parts by shape; seconds of a message and of a
    byte: what the programme asks."""

    leaving: np.ndarray
    own_share: np.ndarray
    links: tuple[np.ndarray, np.ndarray]


def drawn(seed: int):
    """A table, a random graph of its blocks in the tree's order, and its transfers."""
    random = Random(seed)
    table = replace(random_table(random, SIZES), schedule="1f1b", depth=0)
    n = table.blocks
    edges = [(random.randrange(max(0, block - 3), block), block) for block in range(1, n) if random.random() < 0.6]
    place = {block: at for at, block in enumerate(order(tree(n, edges)))}
    edges = [(place[maker], place[reader]) for maker, reader in edges]
    leaving = [[[random.randint(0, 3) * (j < n) for j in range(n + 1)] for _ in range(n)] for _ in range(2)]
    share = np.array([random.choice([0.5, 1.0]) for _ in table.units])
    links = np.array([0.0, 0.25]), np.array([0.25, 1.0])
    leaving += [[[random.choice((0, 0, 1)) * (j < n) for j in range(n + 1)] for _ in range(n)] for _ in range(2)]
    return table, tree(n, edges), Moves(np.array(leaving, float), share, links)


def runs(node: Series) -> set[tuple[int, int]]:
    """The runs of blocks that may be a stage: of neighbours in a series, of whole branches beside each other, and of
    the last branch's end with what comes after."""
    ends, found, tails = [order(node)[0]], set(), []
    for item in node.items:
        if isinstance(item, Parallel):
            parts = [(order(branch)[0], order(branch)[-1] + 1) for branch in item.branches]
            found |= {(parts[a][0], parts[b][1]) for a in range(len(parts)) for b in range(a, len(parts))}
            found |= {run for branch in item.branches for run in runs(branch)}
            ends.append(parts[-1][1])
            tails.append((parts[-1][1], {a for a, b in runs(item.branches[-1]) if b == parts[-1][1]}))
        else:
            ends.append(item + 1)
    found |= {(a, b) for after, starts in tails for a in starts for b in ends if after < b}
    return found | {(a, b) for a in ends for b in ends if a < b}


def before(node: Series, blocks: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(blocks))

    def add(part: Series) -> tuple[list[int], list[int]]:
        """Edges of a part; its first blocks and its last."""
        first, last = [], []
        for item in part.items:
            ends = [add(branch) for branch in item.branches] if isinstance(item, Parallel) else [([item], [item])]
            starts = [block for each, _ in ends for block in each]
            graph.add_edges_from(product(last, starts))
            first = first or starts
            last = [block for _, each in ends for block in each]
        return first, last

    add(node)
    return graph


def brute(table, node: Series, moves: Moves, ways: StageWays, limit: float) -> float:
    """The least longest path of all stages under the limit."""
    n, best, allowed, graph = table.blocks, inf, runs(node), before(node, table.blocks)
    weight = 1 / max(1, table.micro_batches - 1)
    for cuts in product((False, True), repeat=n - 1):
        ends = [0, *(at for at, cut in enumerate(cuts, 1) if cut), n]
        if not all(run in allowed for run in pairwise(ends)):
            continue
        of = [stage for stage, (i, j) in enumerate(pairwise(ends)) for _ in range(i, j)]
        stages = nx.DiGraph()
        stages.add_nodes_from(range(len(ends) - 1))
        stages.add_edges_from((of[a], of[b]) for a, b in graph.edges if of[a] != of[b])
        for shapes in product(range(len(table.units)), repeat=len(ends) - 1):
            starts = np.cumsum([0, *(table.units[k] for k in shapes)])
            if starts[-1] != table.all_units:
                continue
            took: dict[int, float] = {}
            after: dict[int, tuple[int, float]] = {}
            for stage in reversed(range(len(shapes))):
                i, j, q, k = ends[stage], ends[stage + 1], int(starts[stage]), shapes[stage]
                reads = [after[reader] for reader in stages.successors(stage)]
                behind = max((deep for deep, _ in reads), default=0)
                found = ways.ways(behind, Place(i, j, q, k)) if table.prices_of[k, q] >= 0 else []
                here = [f + b for (f, b, sync), _ in found if f + b + sync * weight < limit]
                cross = int(table.crosses[q + table.units[k]]) if q + table.units[k] < table.all_units else 0
                there, back, shared_there, shared_back = moves.leaving[:, i, j]
                sizes = there * moves.own_share[k] + shared_there, back * moves.own_share[k] + shared_back
                moved = sum(size * moves.links[1][cross] for size in sizes)
                moved += sum(moves.links[0][cross] for size in sizes if size > 0)
                if not here or not moved < limit:
                    break
                # Of the ways under the limit the one that is best with a share of the step's end, as the rows say it.
                weighed = min((f + b + sync * weight, f + b) for (f, b, sync), _ in found)
                took[stage] = weighed[1] + moved
                after[stage] = behind + 1, took[stage] + max((rest for _, rest in reads), default=0.0)
            else:
                best = min(best, max(rest for _, rest in after.values()))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_least_path_is_that_of_all_stages(seed):
    table, node, moves = drawn(seed)
    ways = StageWays(table, base(table.prices), inf, {})
    programme = Programme(ways, moves, node)
    for limit in (inf, 40.0, 25.0):
        found = programme.least(limit)
        expected = brute(table, node, moves, ways, limit)
        assert (found[0] if found else inf) == pytest.approx(expected, rel=1e-9)
        if found:
            assert [place.start for place in found[1]] == [0, *(place.stop for place in found[1][:-1])]


def test_on_a_chain_whose_transfers_cost_nothing_the_formula_is_the_chains():
    random = Random(0)
    for _ in range(50):
        count, c = random.randint(1, 5), random.randint(1, 9)
        turns = [(random.uniform(1, 3), random.uniform(1, 5), random.uniform(0, 1)) for _ in range(count)]
        nothing = [(0.0, 0.0)] * (count - 1)
        ahead = list(range(1, count + 1))
        chain = pipeline_seconds(turns, nothing, ahead, c)
        edges = {(stage, stage + 1): (0.0, 0.0) for stage in range(count - 1)}
        assert graph_seconds(turns, edges, ahead[::-1], c) == pytest.approx(chain, rel=1e-12)


@pytest.mark.parametrize("c", [1, 2, 8])
def test_branches_side_by_side_take_as_long_as_one(c):
    """Two towers and a head: the fill of two stages, not of three; then one micro-batch after another."""
    turns, free = [(1.0, 2.0, 0.0)] * 3, (0.0, 0.0)
    assert graph_seconds(turns, {(0, 2): free, (1, 2): free}, [2, 2, 1], c) == 2 * 3.0 + (c - 1) * 3.0
    assert graph_seconds(turns, {(0, 1): free, (1, 2): free}, [3, 2, 1], c) == 3 * 3.0 + (c - 1) * 3.0


def test_what_comes_from_two_stages_comes_one_after_the_other():
    turns = [(1.0, 2.0, 0.0)] * 3
    # Each micro-batch brings 2 · 4 seconds of messages through the head's port.
    assert graph_seconds(turns, {(0, 2): (4.0, 0.0), (1, 2): (4.0, 0.0)}, [2, 2, 1], 5) == 3 + 8 + 3 + 4 * 8


def test_a_stage_waits_for_what_the_others_are_sent_back():
    """Three micro-batches, two in flight: two round trips of a tower, each of its own turn, the head's, and both
    towers' messages, down and back."""
    turns, edge = [(1.0, 2.0, 0.0)] * 3, (0.5, 0.25)
    moved, ahead = {(0, 2): edge, (1, 2): edge}, [2, 2, 1]
    trip = 3 + 2 * 0.5 + 2 * 0.25
    assert graph_seconds(turns, moved, ahead, 3) == (trip + 3) + (trip + 3)
    # Where one tower is on another node, they don't share a port.
    assert graph_seconds(turns, moved, ahead, 3, far={(0, 2)}) == (trip - 0.75 + 3) * 2


@pytest.mark.parametrize("seed", range(40))
def test_no_stages_go_under_the_bound(seed):
    """The least of the formula's seconds over the answers that the programme goes through."""
    table, node, moves = drawn(seed)
    ways = StageWays(table, base(table.prices), inf, {})
    programme, edges = Programme(ways, moves, node), sorted(before(node, table.blocks).edges)
    least, limit = inf, inf
    while (found := programme.least(limit)) is not None:
        places = found[1]
        of = [at for at, place in enumerate(places) for _ in range(place.start, place.stop)]
        moved = {(of[a], of[b]): (0.0, 0.0) for a, b in edges if of[a] != of[b]}
        deep = [stages - 1 for stages in paths_behind(list(moved), len(places))]
        turns = [ways.ways(b, place)[0][0] for b, place in zip(deep, places, strict=True)]
        least = min(least, graph_seconds(turns, moved, [b + 1 for b in deep], table.micro_batches))
        limit = programme.slowest(places, deep)
    assert least_step([table], edges) <= least * (1 + 1e-9)


def test_the_bound_of_blocks_that_are_alike_counts_whole_blocks():
    """Seven blocks of 3 seconds on 3 devices: one has three of them."""
    one = np.ones((1, 7, 1))
    nothing, change = np.zeros((1, 7, 1)), np.zeros((1, 7, 1, 1))
    none, lent = np.zeros(1), np.zeros((1, 7, 7))
    prices = Prices(
        one, 2 * one, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, change, change, none,
        none, lent, lent,
    )  # fmt: skip
    moved = np.zeros((2, 8, 1, 1))
    table = JointTable(
        prices, np.array([1]), np.array([0]), np.zeros((1, 3), int), np.zeros(4, int), moved, moved, inf, 4, 3
    )
    assert least_step([table], []) == 4 * 9.0
    # One micro-batch goes along the longest path.
    assert least_step([replace(table, micro_batches=1)], [(at, at + 1) for at in range(6)]) == 7 * 3.0
    # Of two numbers of micro-batches each block may have its own.
    assert least_step([table, replace(table, micro_batches=1)], []) == 9.0
