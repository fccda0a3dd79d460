"""Moves between states: known counts and means, brute force over all paths, and the same moves done on views."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod

import pytest

from partita.errors import InputError
from partita.redistribution import ArrayType, Layout, Mesh, View
from partita.redistribution.search import redistribution
from tests.redistribution.materialise import materialise
from tests.redistribution.moves import Move, State, cheapest, cheapest_from, moves, states
from tests.redistribution.recognise import recognise


def received(path: Sequence[Move]) -> Fraction:
    return sum((move.received for move in path), Fraction(0))


def gather_first(source: State, target: State, shape: tuple[int, ...]) -> Fraction:
    """Gather every dim, then reduce to all, then slice."""
    pieces = prod(source.dims)
    size = Fraction(prod(shape))
    return size / pieces * (pieces - 1) + 2 * size * (source.parts - 1) / source.parts


@pytest.mark.parametrize(
    ("devices", "count", "pairs", "most", "dear", "mean"),
    [(4, 15, 210, 3, 196, 0.40901), (8, 35, 1190, 4, 1156, 0.27394)],
)
def test_counts_and_mean_of_three_dims(devices: int, count: int, pairs: int, most: int, dear: int, mean: float) -> None:
    shape = (128, 256, 512)
    found = states(shape, devices)
    assert (len(found), len(set(found))) == (count, count)
    paths = {(s, t): path for s in found for t, path in cheapest_from(s, shape).items() if s != t}
    assert len(paths) == pairs
    assert max(map(len, paths.values())) == most
    first = {(s, t): gather_first(s, t, shape) for s, t in paths}
    ratios = [received(path) / first[pair] for pair, path in paths.items() if first[pair]]
    assert len(ratios) == dear
    assert round(float(sum(ratios) / len(ratios)), 5) == mean


def test_each_path_is_moves_that_follow_one_another() -> None:
    shape = (4, 6)
    for source in states(shape, 12):
        for target, path in cheapest_from(source, shape).items():
            state = source
            for move in path:
                assert move in list(moves(state, shape))
                assert move.state == state.shifted(move.source, move.target, move.group)
                assert move.local_shape == move.state.local_shape(shape)
                state = move.state
            assert state == target


@pytest.mark.parametrize(("shape", "devices"), [((8, 4), 4), ((6, 9), 6), ((2, 3), 6)])
def test_cheapest_against_relaxing_every_move_until_nothing_changes(shape: tuple[int, ...], devices: int) -> None:
    """Fewest elements, then fewest moves."""
    found = states(shape, devices)
    for source in found:
        best: dict[State, tuple[Fraction, int]] = {source: (Fraction(0), 0)}
        while True:
            better = dict(best)
            for state, (cost, count) in best.items():
                for move in moves(state, shape):
                    way = (cost + move.received, count + 1)
                    better[move.state] = min(better.get(move.state, way), way)
            if better == best:
                break
            best = better
        assert {t: (received(path), len(path)) for t, path in cheapest_from(source, shape).items()} == best


# On 8 devices, an array of 16 × 8: what a move is called, its group, and the elements received.
MOVES = [
    (State(8, 1, (1, 1)), State(2, 1, (4, 1)), [("slice", 4, 0)]),
    (State(8, 1, (1, 1)), State(4, 2, (1, 1)), [("value-split", 2, 0)]),
    (State(1, 1, (8, 1)), State(8, 1, (1, 1)), [("all-gather", 8, 16 * 7)]),
    (State(1, 8, (1, 1)), State(8, 1, (1, 1)), [("all-reduce", 8, 224)]),
    (State(1, 4, (2, 1)), State(1, 1, (2, 4)), [("reduce-scatter", 4, 64 * 3 // 4)]),
    (State(1, 1, (8, 1)), State(1, 1, (1, 8)), [("all-to-all", 8, 14)]),
    (State(1, 1, (8, 1)), State(1, 2, (4, 1)), [("all-gather", 2, 16), ("value-split", 2, 0)]),
    # Replicas share the work: each adds up half of it first.
    (State(2, 4, (1, 1)), State(2, 1, (1, 4)), [("slice", 2, 0), ("reduce-scatter", 2, 32), ("all-reduce", 2, 32)]),
    (State(2, 2, (2, 1)), State(2, 2, (2, 1)), []),
]


@pytest.mark.parametrize(("source", "target", "wanted"), MOVES)
def test_what_the_moves_are(source: State, target: State, wanted: list[tuple[str, int, int]]) -> None:
    found = cheapest(source, target, (16, 8))
    assert [(move.collective, move.group, move.received) for move in found] == wanted


def test_states_are_of_pieces_that_divide() -> None:
    assert [str(state) for state in states((2, 3), 4)] == [
        "R(1)·V(2)·D(2,1)", "R(1)·V(4)·D(1,1)", "R(2)·V(1)·D(2,1)", "R(2)·V(2)·D(1,1)", "R(4)·V(1)·D(1,1)"
    ]  # fmt: skip
    assert [str(state) for state in states((), 2)] == ["R(1)·V(2)·D()", "R(2)·V(1)·D()"]


@pytest.mark.parametrize(
    ("source", "target", "fact"),
    [
        (State(4, 1, (1,)), State(2, 1, (1,)), "on 4 devices and .* on 2: no moves"),
        (State(1, 1, (4,)), State(4, 1, (1,)), r"D\(4\) is no state of an array of shape \[6\]"),
        (State(4, 1, (1,)), State(1, 1, (4,)), r"no moves lead from .*R\(4\).* to .*D\(4\)"),
        (State(2, 1, (1, 2)), State(4, 1, (1, 1)), r"no state of an array of shape \[6\]"),
    ],
)
def test_no_way(source: State, target: State, fact: str) -> None:
    with pytest.raises(InputError, match=fact):
        cheapest(source, target, (6,))


Axes = dict[str, list[tuple[int, int]]]


def placed(state: State) -> Axes:
    """The mesh axes (size, stride) in each slot, for devices row-major over R, V, D0, D1, …"""
    sizes = {"R": state.replicas, "V": state.parts} | {f"D{i}": pieces for i, pieces in enumerate(state.dims)}
    stride, axes = state.devices, {}
    for slot, size in sizes.items():
        stride //= size
        axes[slot] = [(size, stride)] if size > 1 else []
    return axes


def shift(axes: Axes, move: Move) -> Axes:
    """The minor axes of one slot become minor in another, so that pieces stay intervals; sizes are powers of two."""
    after = {slot: list(found) for slot, found in axes.items()}
    left, moved = move.group, []
    while left > 1:
        size, stride = after[move.source].pop()
        taken = min(size, left)
        if taken < size:
            after[move.source].append((size // taken, stride * taken))
        moved.insert(0, (taken, stride))
        left //= taken
    after[move.target] += moved
    return after


def views(axes: Axes, shape: tuple[int, ...], devices: int) -> list[tuple[int, View]]:
    found = []
    for device in range(devices):
        at = {}
        for slot, axis in axes.items():
            at[slot], count = 0, 1
            for size, stride in axis:
                at[slot], count = at[slot] * size + device // stride % size, count * size
            at[slot] = (at[slot], count)
        intervals = tuple(
            (k * size // n, (k + 1) * size // n) for size, (k, n) in zip(shape, list(at.values())[2:], strict=True)
        )
        found.append((device, View(intervals, *at["V"])))
    return found


@pytest.mark.slow
def test_every_move_is_what_materialise_finds_on_views() -> None:
    """1,190 paths on 8 devices: each move is one collective in as many groups as there must be, and costs as stated."""
    shape, devices = (8, 16, 8), 8
    done = set()
    for source, target in product(states(shape, devices), repeat=2):
        axes = placed(source)
        for move in cheapest(source, target, shape):
            after = shift(axes, move)
            key = (repr(axes), repr(after))
            if key not in done:
                done.add(key)
                one_move(move, views(axes, shape, devices), views(after, shape, devices))
            axes = after
    assert len(done) > 500


def one_move(move: Move, before: list[tuple[int, View]], after: list[tuple[int, View]]) -> None:
    taken = list(zip(range(len(before)), materialise("x", before, after), strict=True))
    exchanges = recognise(taken)
    if move.collective in ("slice", "value-split"):
        assert {exchange.pattern for exchange in exchanges} == {"local"}
        assert move.received == 0
        return
    assert [(exchange.pattern, len(exchange.group)) for exchange in exchanges] == [(move.collective, move.group)] * (
        len(before) // move.group
    )
    # A ring passes half-made sums on; taken straight from each holder, a sum is f − 1 whole arrays.
    times = Fraction(move.group, 2) if move.collective == "all-reduce" else 1
    assert {exchange.received_elements for exchange in exchanges} == {move.received * times}


def layout_of(state: State) -> Layout:
    """The state on a mesh of axes of 2: each slot gets as many axes as it needs, in the mesh's order."""
    axes = iter("abc")

    def some(count: int) -> tuple[str, ...]:
        return tuple(next(axes) for _ in range(count.bit_length() - 1))

    return Layout(tuple(some(pieces) for pieces in state.dims), some(state.parts))


@pytest.mark.slow
def test_the_search_never_goes_under_the_moves_and_takes_them_where_the_axes_lie_right() -> None:
    """States leave out which device has what, so that their cheapest path is a bound for collectives on a mesh."""
    shape, mesh = (8, 8, 8), Mesh.of(a=2, b=2, c=2)
    collectives = frozenset({"slice", "mask", "all-gather", "all-to-all", "all-reduce", "reduce-scatter"})
    equal = 0
    found = states(shape, 8)
    for source in found:
        for target, path in cheapest_from(source, shape).items():
            ends = (ArrayType(shape, layout_of(state), mesh) for state in (source, target))
            answer = redistribution(*ends, 1, objective="bytes", allowed=collectives, whole_axes=True)
            ours = sum(priced.received_bytes for priced in answer.steps)
            assert ours >= received(path), (source, target)
            equal += ours == received(path)
    # The others have their axes in other dims, or in another order, and something has to be sent for that.
    assert (equal, len(found) ** 2) == (628, 1225)
