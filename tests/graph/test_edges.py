"""Edges between blocks and between stages."""

from __future__ import annotations

from dataclasses import replace

from partita.graph import Block, Graph, Op, Tensor
from partita.graph.edges import block_edges, paths_behind, stage_edges


def _towers() -> Graph:
    """Two towers of one block each on one input, a head that reads both, and a mask that no parameter reaches."""
    tensors = (
        *(Tensor(name, (2, 4), role="parameter") for name in ("wa", "wb", "wh")),
        Tensor("x", (1, 2), role="input", gradient=False), Tensor("mask", (1, 4), gradient=False),
        *(Tensor(name, (1, 4)) for name in ("a", "b", "y")),
    )  # fmt: skip
    ops = (
        Op("m", "relu", ("x",), ("mask",), "left"), Op("l", "linear", ("x", "wa"), ("a",), "left"),
        Op("r", "linear", ("x", "wb"), ("b",), "right"), Op("h", "linear", ("a", "b", "mask", "wh"), ("y",), "head"),
    )  # fmt: skip
    blocks = (Block("left", ("wa",)), Block("right", ("wb",)), Block("head", ("wh",)))
    return Graph("towers", 1, None, tensors, ops, blocks, ("x",), ("y",))


def test_edges_of_blocks() -> None:
    assert block_edges(_towers()) == {("left", "head"): ("a",), ("right", "head"): ("b",)}, "the mask makes no edge"


def test_what_is_drawn_at_random_is_drawn_once_and_sent() -> None:
    towers = _towers()
    ops = (replace(towers.ops[0], kind="bernoulli"), *towers.ops[1:])
    assert block_edges(replace(towers, ops=ops))["left", "head"] == ("mask", "a")


def test_edges_of_stages() -> None:
    edges = block_edges(_towers())
    assert stage_edges(edges, (["left"], ["right"], ["head"])) == ((0, 2), (1, 2))
    assert stage_edges(edges, (["left", "right"], ["head"])) == ((0, 1),)
    assert stage_edges(edges, (["left", "right", "head"],)) == ()


def test_longest_paths():
    assert paths_behind(((0, 1), (1, 2), (2, 3)), 4) == [4, 3, 2, 1]
    assert paths_behind(((0, 3), (1, 3), (2, 3)), 4) == [2, 2, 2, 1]
    assert paths_behind(((0, 1), (0, 2), (2, 3), (3, 4), (1, 5), (4, 5)), 6) == [5, 2, 4, 3, 2, 1]
    assert paths_behind((), 2) == [1, 1]
