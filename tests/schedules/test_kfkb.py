"""kFkB on graphs of stages: what each stage holds, and that every order comes to an end."""

from __future__ import annotations

from collections import Counter
from random import Random

import networkx as nx
import pytest

from partita.errors import PlanError
from partita.schedules import Turn, find, in_flight, kfkb, kfkb_on, one_f_one_b
from partita.schedules.one_f_one_b import one_f_one_b_of

# Two branches of one and of three stages between a first stage and a last.
BRANCHES = ((0, 1), (0, 2), (2, 3), (3, 4), (1, 5), (4, 5))


def drawn(random: Random, stages: int) -> list[tuple[int, int]]:
    """A connected graph whose edges go forward in the list."""
    edges = {(random.randrange(stage), stage) for stage in range(1, stages)}
    edges |= {tuple(sorted(random.sample(range(stages), 2))) for _ in range(random.randrange(stages))}
    return sorted(edges)


def behind(edges, stages: int) -> list[int]:
    """For each stage the stages on the longest path from it on, itself counted."""
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(stages))
    found = [1] * stages
    for stage in reversed(list(nx.topological_sort(graph))):
        found[stage] = 1 + max((found[reader] for reader in graph.successors(stage)), default=0)
    return found


def ends(orders, edges, counts) -> bool:
    """Whether every turn can be taken, a turn after those of its samples in the stages that it reads."""

    def overlapping(stage: int, micro: int, other: int) -> range:
        first, last = micro * counts[other], (micro + 1) * counts[other]
        return range(first // counts[stage], -(-last // counts[stage]))

    graph = nx.DiGraph()
    for turns in orders.values():
        nx.add_path(graph, turns)
    for maker, reader in edges:
        for micro in range(counts[reader]):
            for made in overlapping(reader, micro, maker):
                graph.add_edge(Turn(maker, "forward", made), Turn(reader, "forward", micro))
                graph.add_edge(Turn(reader, "backward", micro), Turn(maker, "backward", made))
    return nx.is_directed_acyclic_graph(graph)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_chain_with_depth_is_1f1b_with_depth(depth):
    assert kfkb(4, 12, depth=depth) == one_f_one_b(4, 12, depth)


@pytest.mark.parametrize(("k", "depth"), [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 2)])
def test_what_is_held_follows_from_the_longest_path_k_and_depth(k, depth):
    orders = kfkb_on([24] * 6, BRANCHES, k, depth)
    longest = [own - 1 for own in behind(BRANCHES, 6)]
    assert [in_flight(orders[stage]) for stage in range(6)] == [min(24, k * (1 + (1 + depth) * n)) for n in longest]
    assert ends(orders, BRANCHES, [24] * 6)


@pytest.mark.parametrize("k", [1, 2])
def test_a_stage_with_a_depth_of_its_own_holds_so_many_rounds_more_and_so_do_those_before_it(k):
    depths = (0, 3, 0, 2, 0, 0)
    orders = kfkb_on([24] * 6, BRANCHES, k, depths)
    assert [in_flight(orders[stage]) for stage in range(6)] == [min(24, k * rounds) for rounds in (7, 5, 6, 5, 2, 1)]
    assert ends(orders, BRANCHES, [24] * 6)
    assert kfkb_on([24] * 6, BRANCHES, k, (2,) * 6) == kfkb_on([24] * 6, BRANCHES, k, 2)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"depth": (1, 0)}, "depth=1 and 0: of 2 stages, where there are 3"),
    ({"depth": (0, -2, 0)}, "depth=-2: .* 0 is the least"),
    ({"k": (1, 1, 1)}, 'schedule "kfkb" takes one number as "k", not 3: 1, 1 and 1'),
])  # fmt: skip
def test_depths_are_one_for_each_stage(arguments, words):
    with pytest.raises(PlanError, match=words):
        find("kfkb").on([4] * 3, [(0, 2), (1, 2)], arguments)
    with pytest.raises(PlanError, match=r'schedule "1f1b" takes one number as "depth", not 2: 1 and 0\. Of kfkb'):
        find("1f1b")(2, 4, depth=(1, 0))


@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 5), (4, 2), (4, 9), (7, 7)])
def test_a_chain_is_1f1b(stages, count):
    assert kfkb(stages, count) == one_f_one_b(stages, count)


@pytest.mark.parametrize("counts", [(2, 4), (4, 2), (6, 4, 12), (2, 3, 6, 1)])
def test_a_chain_of_unlike_stages_is_1f1b(counts):
    edges = [(stage, stage + 1) for stage in range(len(counts) - 1)]
    assert kfkb_on(counts, edges) == one_f_one_b_of(counts)


def test_side_by_side_branches_hold_as_little_as_their_own_length_asks_for():
    orders = kfkb_on([9] * 6, BRANCHES)
    assert [in_flight(orders[stage]) for stage in range(6)] == [5, 2, 4, 3, 2, 1]
    assert [in_flight(one_f_one_b(6, 9)[stage]) for stage in range(6)] == [6, 5, 4, 3, 2, 1]


def test_rounds_of_two():
    words = {turn: f"{turn.phase[0].upper()}{turn.micro}" for turn in kfkb(2, 6, 2)[0] + kfkb(2, 6, 2)[1]}
    first, last = ([words[turn] for turn in kfkb(2, 6, 2)[stage]] for stage in (0, 1))
    assert " ".join(last) == "F0 F1 B0 B1 F2 F3 B2 B3 F4 F5 B4 B5"
    assert " ".join(first) == "F0 F1 F2 F3 B0 B1 F4 F5 B2 B3 B4 B5"


@pytest.mark.parametrize("seed", range(60))
def test_any_graph(seed):
    random = Random(seed)
    stages, k, count = random.randint(1, 9), random.randint(1, 3), random.randint(1, 12)
    edges = drawn(random, stages) if stages > 1 else []
    orders = kfkb_on([count] * stages, edges, k)
    for stage, path in enumerate(behind(edges, stages)):
        turns = [Turn(stage, phase, micro) for phase in ("forward", "backward") for micro in range(count)]
        assert Counter(orders[stage]) == Counter(turns)
        assert in_flight(orders[stage]) == min(count, k * path)
    assert ends(orders, edges, [count] * stages)


@pytest.mark.parametrize("seed", range(60))
def test_any_graph_of_unlike_stages(seed):
    random = Random(1000 + seed)
    stages, k = random.randint(2, 8), random.randint(1, 2)
    counts = [random.choice((1, 2, 3, 4, 6, 12)) for _ in range(stages)]
    edges = drawn(random, stages)
    assert ends(kfkb_on(counts, edges, k), edges, counts)


def test_an_order_that_never_ends_is_seen():
    orders = kfkb_on([3] * 6, BRANCHES)
    orders[1] = sorted(orders[1], key=lambda turn: (turn.micro, turn.phase), reverse=True)
    assert not ends(orders, BRANCHES, [3] * 6)


def test_rounds_of_none_are_refused():
    with pytest.raises(PlanError, match=r"k=0: .*; 1 is the least"):
        kfkb(2, 4, 0)
