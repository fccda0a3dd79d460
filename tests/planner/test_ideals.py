"""Downward-closed sets: how many there are, in which order, and what a sample of them is."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest

from partita.errors import InputError
from partita.planner.ideals import Ideals, ideals, rising, sample, unpacked
from partita.workload.graph import topological
from tests.workload.graphs import random_edges


def sets(found: Ideals) -> list[frozenset[int]]:
    return [frozenset(found.members(index)) for index in range(len(found))]


@pytest.mark.parametrize(
    ("nodes", "edges", "count"),
    [
        (70, [(node, node + 1) for node in range(69)], 71),  # a chain, over two words
        (9, [], 2**9),
        (12, [(node, node + 2) for node in range(10)], 7 * 7),  # two chains
        (7, [(0, node) for node in range(1, 7)], 1 + 2**6),
    ],
)
def test_the_number_is_that_of_the_formula(nodes: int, edges: list[tuple[int, int]], count: int) -> None:
    assert (len(ideals(nodes, edges)), ideals(nodes, edges).complete) == (count, True)


@pytest.mark.parametrize("seed", range(10))
def test_they_are_all_subsets_that_are_closed_each_once_and_parts_first(seed: int) -> None:
    random = Random(seed)
    nodes = random.randint(1, 9)
    edges = random_edges(random, nodes, 0.3)
    values = [random.choice([0.0, 0.1, 0.7]) for _ in range(nodes)]
    found = sets(ideals(nodes, edges).by(values))
    subsets = (frozenset(n for n in range(nodes) if bits[n]) for bits in product((0, 1), repeat=nodes))
    assert set(found) == {one for one in subsets if all(low in one for low, high in edges if high in one)}
    assert len(set(found)) == len(found)
    assert not any(later < earlier for index, earlier in enumerate(found) for later in found[index:])


def test_a_graph_with_too_many_gets_a_sample_of_closed_sets_from_the_empty_one_to_all() -> None:
    random = Random(1)
    edges = random_edges(random, 80, 0.02)
    found = ideals(80, edges, 5000)
    assert (found.complete, len(found) > 1000) == (False, True)
    rows = unpacked(found.masks, 80).astype(bool)
    assert all(not (rows[:, high] & ~rows[:, low]).any() for low, high in edges)
    assert (rows[0].sum(), rows[-1].sum()) == (0, 80)
    assert (np.diff(rows.sum(axis=1)) >= 0).all()
    assert [(len(found), found.complete) for found in rising(80, [(n, n + 1) for n in range(79)])] == [
        (81, False), (81, True),
    ]  # fmt: skip
    assert len(sample(80, [(n, n + 1) for n in range(79)])) == 81


def test_sums_are_those_of_the_members() -> None:
    random = Random(2)
    values = [random.random() for _ in range(12)]
    found = ideals(12, random_edges(random, 12, 0.4))
    assert found.sums(values) == pytest.approx([sum(values[n] for n in one) for one in sets(found)], rel=1e-14)
    assert found.having() == [sum(n in one for one in sets(found)) for n in range(12)]
    assert found.between(0, len(found) - 1) == list(range(12))


def test_a_circle_is_named() -> None:
    assert topological("f", "abcd", [(3, 2), (2, 0), (0, 1)]) == [3, 2, 0, 1]
    with pytest.raises(InputError, match=r"f: the edges make a circle: (b -> c -> b|c -> b -> c);"):
        topological("f", "abcd", [(0, 1), (1, 2), (2, 1), (2, 3)])
