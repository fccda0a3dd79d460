"""The series-parallel tree: hand-made graphs, and what holds for all."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.planner.branches.tree import Parallel, Series, branches, order, tree


def series(*items) -> Series:
    return Series(items)


def parallel(*items) -> Parallel:
    return Parallel(tuple(each if isinstance(each, Series) else Series((each,)) for each in items))


@pytest.mark.parametrize(
    ("blocks", "edges", "expected"),
    [
        (1, [], series(0)),
        (3, [(0, 1), (1, 2)], series(0, 1, 2)),
        (4, [(0, 1), (0, 2), (1, 3), (2, 3)], series(0, parallel(1, 2), 3)),
        # An edge that a path goes beside says nothing new.
        (4, [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)], series(0, 1, 2, 3)),
        # Two towers, turn by turn in the list.
        (5, [(0, 2), (1, 3), (2, 4), (3, 4)], series(parallel(series(0, 2), series(1, 3)), 4)),
        (6, [(0, 1), (0, 2), (2, 3), (2, 4), (1, 5), (3, 5), (4, 5)],
         series(0, parallel(1, series(2, parallel(3, 4))), 5)),
        # The letter N is neither.
        (4, [(0, 2), (0, 3), (1, 3)], series(0, 1, 2, 3)),
        (3, [], series(parallel(0, 1, 2))),
    ],
    ids=["one", "chain", "diamond", "skips", "towers", "nested", "N", "apart"],
)  # fmt: skip
def test_the_tree_of_a_graph(blocks, edges, expected):
    found = tree(blocks, edges)
    assert found == expected
    assert branches(found) == any(isinstance(item, Parallel) for item in expected.items)


@st.composite
def graphs(draw):
    blocks = draw(st.integers(1, 8))
    pairs = [(maker, reader) for reader in range(blocks) for maker in range(reader)]
    return blocks, sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []


def before_by(node: Series) -> set[tuple[int, int]]:
    """The pairs of blocks that the tree says come one before the other."""
    found, done = set(), []
    for item in node.items:
        here = [item] if isinstance(item, int) else [block for branch in item.branches for block in order(branch)]
        found |= {(one, other) for one in done for other in here}
        if isinstance(item, Parallel):
            found |= {pair for branch in item.branches for pair in before_by(branch)}
        done += here
    return found


@given(graphs())
def test_the_tree_orders_blocks_as_the_graph_does_and_parts_them_where_it_does(drawn):
    blocks, edges = drawn
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(blocks))
    found = tree(blocks, edges)
    listed = order(found)
    assert sorted(listed) == list(range(blocks))
    said, real = before_by(found), set(nx.transitive_closure_dag(graph).edges)
    # What the tree doesn't part is a list: there alone it may say more than the graph.
    assert real <= said
    if said != real:
        assert any(not nx.has_path(graph, one, other) for one, other in pairwise(listed))
    assert all(listed.index(maker) < listed.index(reader) for maker, reader in edges)
