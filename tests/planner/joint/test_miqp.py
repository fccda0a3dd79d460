"""The programme solved by HiGHS: against every answer there is, and against the search."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from itertools import combinations, product
from math import inf
from random import Random

import numpy as np
import pytest

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.planner.joint import miqp, search
from partita.planner.joint.convex import chain, condensed
from partita.planner.joint.formula import fits, step_seconds, terms
from partita.planner.joint.linear import Programme, total
from partita.planner.joint.price import Pricing
from partita.planner.joint.table import JointTable, Prices
from partita.problem import Problem
from tests.planner.joint.brute import brute, small_table
from tests.planner.joint.tables import Sizes, random_answer, random_table

# Thorough: the fast suite has the search against brute force and whole plans.
pytestmark = pytest.mark.slow


def checked(table: JointTable, expected: float, found: miqp.Solved) -> bool:
    """Whether there is an answer; it must be the expected one, proven, and priced again."""
    assert found.optimal
    assert found.gap == 0
    assert found.seconds == pytest.approx(expected, rel=1e-9)
    assert found.bound_seconds == found.seconds
    if not found.stages:
        return False
    assert found.order == tuple(range(table.blocks))
    assert fits(table, found.stages)
    assert step_seconds(table, found.stages) == found.seconds
    return True


def test_100_random_tables_against_brute_force():
    random = Random(1)
    answered = 0
    for _ in range(100):
        table = small_table(random, most=300)
        answered += checked(table, brute(table).seconds, miqp.best(table))
    assert 50 < answered < 90  # both answers occur


@pytest.mark.slow
def test_200_more():
    random = Random(2)
    for _ in range(200):
        table = small_table(random)
        checked(table, brute(table).seconds, miqp.best(table))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "sizes"),
    [(100, Sizes(blocks=(5, 6), units=(2, 4))), (8, Sizes(blocks=(8, 10), units=(2, 4), shapes=(1, 2)))],
)
def test_the_search_agrees_where_there_are_too_many_answers(count: int, sizes: Sizes):
    random = Random(3)
    answered = 0
    for _ in range(count):
        table = random_table(random, sizes)
        found = search.best(table)
        answered += checked(table, inf if found is None else found.seconds, miqp.best(table))
    assert answered > count / 2


def test_the_search_agrees_on_a_real_model():
    whole = load_model("gpt3-tiny", None, "bfloat16", samples=1)
    pricing = Pricing(Problem(whole, parse_cluster("1x4xa100-80gb"), 32, target="partita"), alike(whole))
    family = max(pricing.families, key=lambda one: len(one.shapes))
    for schedule, depth in (("1f1b", 0), ("1f1b", 1), ("gpipe", 0)):
        table = pricing.table(family, 8, schedule, depth)
        found = search.best(table)
        assert found is not None
        assert checked(table, found.seconds, miqp.best(table))


def test_only_what_is_better_than_the_given_time_is_returned():
    random = Random(4)
    for _ in range(20):
        table = small_table(random, most=100)
        least = miqp.best(table).seconds
        if least == inf:
            continue
        nothing = miqp.best(table, below=least)
        assert (nothing.stages, nothing.seconds, nothing.optimal) == ((), inf, True)
        assert nothing.bound_seconds == least
        assert miqp.best(table, below=least * 1.001 + 1e-6).seconds == pytest.approx(least, rel=1e-9)


def random_edges(random: Random, n: int) -> list[tuple[int, int]]:
    return [pair for pair in combinations(range(n), 2) if random.random() < 0.5]


def without_loans(table: JointTable) -> JointTable:
    none = np.zeros_like(table.prices.lent_bytes)
    return replace(table, prices=replace(table.prices, lent_bytes=none, lent_sync=none))


def places(table: JointTable, count: int):
    """(unit, shape) of as many stages, every way."""
    for shapes in product(range(len(table.units)), repeat=count):
        units = [int(table.units[: k + 1][-1]) for k in shapes]
        begins = [sum(units[:i]) for i in range(count)]
        if sum(units) == table.all_units and all(
            table.prices_of[k, q] >= 0 for k, q in zip(shapes, begins, strict=True)
        ):
            yield list(zip(begins, shapes, strict=True))


def best_on_graph(table: JointTable, edges) -> float:
    """Every block in every stage with every option: what keeps the edges' order and fits, in words of its own."""
    n, least = table.blocks, inf
    for count in range(1, min(table.most_stages, n) + 1):
        for where in places(table, count):
            for stage_of in product(range(count), repeat=n):
                if len(set(stage_of)) < count or any(stage_of[u] > stage_of[w] for u, w in edges):
                    continue
                for options in product(range(table.prices.forward.shape[2]), repeat=n):
                    least = min(least, on_graph(table, edges, where, stage_of, options))
    return least


def on_graph(table: JointTable, edges, where, stage_of, options) -> float:
    """Step seconds, infinite where it doesn't fit."""
    prices, count, c = table.prices, len(where), table.micro_batches
    f, b, sync = ([0.0] * count for _ in range(3))
    of, ob = [0.0] * count, [0.0] * count
    for i, (unit, shape) in enumerate(where):
        v = table.prices_of[shape, unit]
        blocks = [(u, options[u]) for u in range(table.blocks) if stage_of[u] == i]
        inner = [(u, w) for u, w in edges if stage_of[u] == stage_of[w] == i]
        first = [x for x in blocks if all(w != x[0] for _, w in inner)]
        last = [x for x in blocks if all(u != x[0] for u, _ in inner)]
        f[i] = sum(prices.forward[v, u, m] for u, m in blocks) + sum(prices.enter_forward[v, u, m] for u, m in first)
        f[i] += sum(prices.leave_forward[v, u, m] for u, m in last)
        f[i] += sum(prices.change_forward[v, w, options[u], options[w]] for u, w in inner)
        b[i] = sum(prices.backward[v, u, m] for u, m in blocks) + sum(prices.enter_backward[v, u, m] for u, m in first)
        b[i] += sum(prices.leave_backward[v, u, m] for u, m in last)
        b[i] += sum(prices.change_backward[v, w, options[u], options[w]] for u, w in inner)
        sync[i] = prices.base_sync[v] + sum(prices.sync[v, u, m] for u, m in blocks)
        held = c if table.schedule == "gpipe" else min(c, (count - 1 - i) * (1 + table.depth) + 1)
        size = prices.base_bytes[v] + max(prices.temporary_bytes[v, u, m] for u, m in blocks)
        size += sum(prices.fixed_bytes[v, u, m] + held * prices.held_bytes[v, u, m] for u, m in blocks)
        if not size <= table.room:
            return inf
        for w in (w for u, w in edges if stage_of[u] <= i < stage_of[w]):
            after, next_shape = where[i + 1]
            at = (table.crosses[after], w, table.port[shape], table.port[next_shape])
            of[i], ob[i] = of[i] + table.transfer_forward[at], ob[i] + table.transfer_backward[at]
    everything = sum(f) + sum(b) + sum(of) + sum(ob)
    if not everything < inf:
        return inf
    if table.schedule == "gpipe":
        return everything + (c - 1) * (max(f + of) + max(b + ob)) + max(sync)
    slowest = max([x + y for x, y in zip(f + of, b + ob, strict=True)])
    for i in range(count):
        flying = (count - 1 - i) * (1 + table.depth) + 1
        if c > flying:
            slowest = max(slowest, (sum(f[i:]) + sum(b[i:]) + sum(of[i:]) + sum(ob[i:])) / flying)
    return everything + (c - 1) * slowest + max(sync)


def graphs_checked(seed: int, count: int) -> int:
    random, answered = Random(seed), 0
    for _ in range(count):
        table = random_table(random, Sizes(blocks=(2, 5), units=(1, 3), shapes=(1, 2), options=(1, 2)))
        table, edges = without_loans(table), random_edges(random, table.blocks)
        found = miqp.best(table, edges=edges)
        assert found.optimal
        assert found.seconds == pytest.approx(best_on_graph(table, edges), rel=1e-9)
        answered += bool(found.stages)
        if found.stages:
            assert sorted(found.order) == list(range(table.blocks))
            assert fits(*condensed(table, edges, found.order, found.stages))
    return answered


def test_25_graphs_against_all_convex_assignments():
    assert graphs_checked(5, 25) > 12


@pytest.mark.slow
def test_100_more_graphs():
    assert graphs_checked(6, 100) > 50


def test_two_branches_are_divided_by_branch_and_not_by_number():
    # Chains 0, 1, 3 and 2, 4: of all stages these two exchange nothing, and no cut of the numbers makes them.
    table = JointTable(
        prices=_alike(5), units=np.array([1]), port=np.array([0]), prices_of=np.array([[0, 0]]),
        crosses=np.zeros(3, int), transfer_forward=np.full((2, 6, 1, 1), 7.0),
        transfer_backward=np.full((2, 6, 1, 1), 7.0), memory_limit=1e9, micro_batches=4, most_stages=2,
    )  # fmt: skip
    found = miqp.best(table, edges=[(0, 1), (1, 3), (2, 4)])
    assert found.seconds == 15 + 3 * 9  # stages of 3 and 2 blocks of 3 seconds each, the slower first or last
    assert {frozenset(found.order[s.start : s.stop]) for s in found.stages} == {frozenset({0, 1, 3}), frozenset({2, 4})}


def _alike(n: int) -> Prices:
    """One way to run n blocks: 1 second forward, 2 backward, nothing else."""
    none = random_table(Random(0), Sizes((n, n), (1, 1), (1, 1), (1, 1))).prices
    prices = {name: np.zeros_like(value[:1]) for name, value in vars(none).items()}
    return Prices(**prices | {"forward": np.ones((1, n, 1)), "backward": np.full((1, n, 1), 2.0)})


def test_a_chain_as_a_graph_is_the_chain():
    random, seen = Random(7), 0
    while seen < 50:
        table = without_loans(random_table(random, Sizes(blocks=(1, 9))))
        answer = random_answer(random, table)
        if answer is None:
            continue
        seen += 1
        small, stages = condensed(table, chain(table.blocks), range(table.blocks), answer)
        one, two = terms(table, answer), terms(small, stages)
        assert (one.total, one.slowest, one.slowest_backward, one.sync) == pytest.approx(
            (two.total, two.slowest, two.slowest_backward, two.sync), rel=1e-12
        )


def large_table() -> JointTable:
    """So large that its proof takes minutes, with an answer that the search finds."""
    random = Random(8)
    while True:
        table = random_table(random, Sizes((16, 16), (4, 4), (4, 4), (3, 3), (8, 12)))
        if (
            random_answer(random, table) is not None
            and (found := search.best(table)) is not None
            and len(found.stages) > 2
        ):
            return table


def test_at_the_time_limit_the_best_so_far_and_its_gap_are_returned():
    table = large_table()
    true = search.best(table)
    assert true is not None
    found = miqp.best(table, limit_seconds=1.5)
    assert not found.optimal
    assert 0 < found.gap <= 1
    assert found.bound_seconds <= true.seconds * (1 + 1e-9)
    assert found.seconds >= true.seconds * (1 - 1e-9)
    if found.stages:
        assert fits(table, found.stages)
        assert found.seconds == step_seconds(table, found.stages)


def split_markets() -> Programme:
    """A programme of 0 and 1 that is known to take HiGHS hours."""
    random, programme = Random(9), Programme()
    items = [programme.choice() for _ in range(50)]
    for _ in range(6):
        weights = {item: float(random.randint(0, 99)) for item in items}
        over = {programme.column(): 1.0, programme.column(): -1.0}
        programme.equal(weights | over, sum(weights.values()) // 2)
        programme.cost |= dict.fromkeys(over, 1.0)
    return programme


def test_ctrl_c_ends_highs_with_what_it_has():
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    found = split_markets().solve(seconds=60)
    assert found.interrupted
    assert not found.ended
    assert found.values is not None
    assert found.bound >= 0


def test_the_time_limit_ends_highs():
    found = split_markets().solve(seconds=0.5)
    assert not found.ended
    assert not found.interrupted


def test_a_programme_by_hand():
    # Weights 3, 4, 5 up to 9, values 4, 5, 7 of 16: the last two are best, 12; in parts a quarter of the second, 12.25.
    programme = Programme()
    items = [programme.choice() for _ in range(3)]
    programme.at_most(dict(zip(items, (3.0, 4.0, 5.0), strict=True)), 9)
    left = programme.column()
    programme.equal({**dict(zip(items, (4.0, 5.0, 7.0), strict=True)), left: 1.0}, 16)
    programme.cost = total([left])
    solved = programme.solve()
    assert solved.values is not None
    assert solved.values[:3].tolist() == [0, 1, 1]
    assert solved.bound == pytest.approx(4)
    assert programme.solve(relaxed=True).bound == pytest.approx(3.75)
    nothing = programme.solve(below=4)
    assert (nothing.values, nothing.bound, nothing.ended) == (None, 4, True)


def test_highs_prints_nothing(capfd):
    split_markets().solve(seconds=0.2)
    assert capfd.readouterr() == ("", "")
