"""The arithmetic of resharding: boxes of parts and of flat intervals, and from which pieces a box is filled."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.adapters.checkpoint.boxes import lacking, shape_of, whole
from partita.adapters.checkpoint.catalogue import Entry, Piece, Stored, require_whole, row_major
from partita.adapters.checkpoint.fill import Files, copy, fill, takes
from partita.adapters.checkpoint.local import flat_pieces, stored_shape, whole_pieces
from partita.adapters.checkpoint.target import Part
from partita.adapters.torch.boxes import flat_boxes, shard_boxes
from partita.errors import InputError
from partita.spacetime.program import Shard

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_a_flat_interval_is_a_few_boxes_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    total = prod(shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    array = np.arange(total).reshape(shape)
    boxes = list(flat_boxes(shape, start, stop))
    found = [array[tuple(slice(a, b) for a, b in box)].flatten() for _, box in boxes]
    assert np.concatenate([np.arange(0), *found]).tolist() == list(range(start, stop))
    assert [place for place, _ in boxes] == [int(part[0]) for part in found]
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_a_fused_part_is_a_box_for_each_of_its_parts() -> None:
    gate_and_up = Shard(dim=0, parts=2, pieces=2, size=8, padded=8)
    assert shard_boxes((8,), gate_and_up, 1) == [(((2, 4),), ((0, 2),)), (((6, 8),), ((2, 4),))]


def test_padding_is_in_no_box() -> None:
    vocabulary = Shard(dim=0, parts=1, pieces=4, size=9, padded=12)
    assert [shard_boxes((9, 2), vocabulary, piece) for piece in range(4)] == [
        [(((0, 3), (0, 2)), ((0, 3), (0, 2)))],
        [(((3, 6), (0, 2)), ((0, 3), (0, 2)))],
        [(((6, 9), (0, 2)), ((0, 3), (0, 2)))],
        [],
    ]


@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        ([((0, 4), (0, 3))], None),
        ([((0, 2), (0, 3)), ((2, 4), (0, 3))], None),
        ([((0, 3), (0, 3)), ((1, 4), (0, 3))], None),
        ([((0, 2), (0, 3)), ((2, 4), (1, 3))], ((2, 4), (0, 1))),
        ([], ((0, 4), (0, 3))),
    ],
)
def test_what_lacks_is_named(boxes: list, expected: object) -> None:
    assert lacking(((0, 4), (0, 3)), boxes) == expected


def stored(path: Path, array: torch.Tensor) -> Stored:
    """An array's values as a file."""
    path.write_bytes(array.contiguous().numpy().tobytes())
    shape = tuple(array.shape)
    return Stored(path, 0, str(array.dtype).removeprefix("torch."), shape, row_major(shape))


PARTS = {
    "whole": Part("w", (6, 4), None, 0, False),
    "columns": Part("w", (6, 8), Shard(1, 1, 2, 8, 8), 1, False),
    "flipped": Part("w", (6, 8), Shard(1, 1, 2, 8, 8), 1, False, flipped=True),
    "fused": Part("w", (12, 3), Shard(0, 3, 2, 12, 12), 1, False),
    "fused, flipped": Part("w", (3, 12), Shard(1, 3, 2, 12, 12), 0, False, flipped=True),
    "padded": Part("w", (9, 2), Shard(0, 1, 2, 9, 12), 1, False),
    "scalar": Part("w", (), None, 0, False),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("copies", [None, 1, 2, 3, 7])
def test_a_rank_s_values_are_found_at_their_place_in_the_dense_tensor(
    tmp_path: Path, name: str, copies: int | None
) -> None:
    """As one array, and as the chunks into which ZeRO cuts it: every element that the part has, and no other."""
    part = PARTS[name]
    dense = torch.arange(1.0, prod(part.shape) + 1).reshape(part.shape)
    local = torch.full(part.local_shape, -1.0)
    for there, here in part.boxes:
        local[tuple(slice(*i) for i in here)] = dense[tuple(slice(*i) for i in there)]
    held = (local.t() if part.flipped else local).contiguous()
    assert tuple(held.shape) == stored_shape(part)
    if copies is None:
        pieces = whole_pieces(part, stored(tmp_path / "all", held))
    else:
        pieces, each = [], -(-held.numel() // copies)
        for index, chunk in enumerate(held.flatten().split(each)):
            first = index * each
            there = stored(tmp_path / str(index), chunk)
            pieces += flat_pieces(part, first, first + len(chunk), there)
    found = torch.zeros(part.shape)
    with Files() as files:
        for piece in pieces:
            copy(piece.stored, found[tuple(slice(*i) for i in piece.box)], files)
    mine = torch.zeros(part.shape)
    for there, _ in part.boxes:
        index = tuple(slice(*i) for i in there)
        mine[index] = dense[index]
    assert torch.equal(found, mine)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_tensor_in_any_cuts_is_filled_from_any_other(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    dense = torch.arange(prod(shape), dtype=torch.float64).reshape(shape)
    folder = tmp_path_factory.mktemp("pieces")
    cuts = [data.draw(st.lists(st.integers(0, size), max_size=2).map(sorted)) for size in shape]
    grid = [list(zip([0, *inner], [*inner, size], strict=True)) for inner, size in zip(cuts, shape, strict=True)]
    pieces = []
    for index in np.ndindex(*map(len, grid)):
        box = tuple(grid[dim][place] for dim, place in enumerate(index))
        part = dense[tuple(slice(*i) for i in box)]
        pieces.append(Piece(box, stored(folder / "-".join(map(str, index)), part)))
    entry = Entry(shape, "float64", tuple(pieces))
    box = tuple(tuple(sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2)))) for size in shape)
    found = torch.full(shape_of(box), -1.0)
    with Files() as files:
        fill(entry, box, found, files)
    assert torch.equal(found, dense[tuple(slice(*i) for i in box)].float())


def partitions(elements: int, copies: int) -> tuple[list[tuple[int, int]], int]:
    """ZeRO's even partitions of a flat group, without padding; and the size of each with it."""
    each = -(-elements // copies)
    return [(min(i * each, elements), min((i + 1) * each, elements)) for i in range(copies)], each


def flat_entry(folder: Path, group: torch.Tensor, copies: int) -> Entry:
    bounds, each = partitions(len(group), copies)
    pieces = []
    for index, (start, stop) in enumerate(bounds):
        padded = torch.full((each,), -7.0)
        padded[: stop - start] = group[start:stop]
        pieces.append(Piece(((start, stop),), stored(folder / f"{copies}.{index}", padded).at(((0, stop - start),))))
    return Entry((len(group),), "float32", tuple(pieces))


def test_a_zero_group_of_four_ranks_moves_to_six_in_nine_pieces(tmp_path: Path) -> None:
    group = torch.arange(50.0)
    entry = flat_entry(tmp_path, group, 4)
    moves, new = [], []
    for rank, (start, stop) in enumerate(partitions(50, 6)[0]):
        read = 0
        for piece, ((a, b),) in takes(entry, ((start, stop),)):
            first = piece.box[0][0]
            moves.append((rank, entry.pieces.index(piece), a - first, b - first))
            read += b - a
        assert read <= 9
        found = torch.full((9,), -1.0)
        with Files() as files:
            fill(entry, ((start, stop),), found[: stop - start], files)
        new.append(found)
    assert moves == [
        (0, 0, 0, 9), (1, 0, 9, 13), (1, 1, 0, 5), (2, 1, 5, 13), (2, 2, 0, 1), (3, 2, 1, 10), (4, 2, 10, 13),
        (4, 3, 0, 6), (5, 3, 6, 11),
    ]  # fmt: skip
    assert torch.equal(torch.cat(new)[:50], group)
    # And back: the same bytes, of which padding is none.
    back = flat_entry(tmp_path, torch.cat(new)[:50], 6)
    for index, (start, stop) in enumerate(partitions(50, 4)[0]):
        found = torch.empty(stop - start)
        with Files() as files:
            fill(back, ((start, stop),), found, files)
        assert found.numpy().tobytes() == (tmp_path / f"4.{index}").read_bytes()[: 4 * (stop - start)]


def test_a_checkpoint_that_lacks_elements_names_them(tmp_path: Path) -> None:
    from partita.adapters.checkpoint.catalogue import Catalogue

    entry = flat_entry(tmp_path, torch.arange(50.0), 4)
    part = Entry(entry.shape, entry.dtype, (*entry.pieces[:2], entry.pieces[3]))
    with pytest.raises(InputError, match=r'of "w" \(exp_avg, \[50\]\) 13 elements are in none of its files: \[26:39\]'):
        require_whole(Catalogue(tmp_path, "test", {("w", "exp_avg"): part}))


@pytest.mark.parametrize("transposed", [False, True])
def test_large_and_strided_values_are_read_in_parts(tmp_path: Path, transposed: bool) -> None:
    """More than is read at once, most of it not wanted, converted on the way."""
    dense = torch.arange(5000 * 1100, dtype=torch.float32).reshape(5000, 1100)
    found = stored(tmp_path / "file", dense)
    box = ((3, 4990), (7, 19))
    wanted = dense[3:4990, 7:19]
    part, target = found.at(box), torch.zeros(4987, 12, dtype=torch.float64)
    if transposed:
        part, target, wanted = part.transposed(), torch.zeros(12, 4987, dtype=torch.float64), wanted.t()
    with Files() as files:
        copy(part, target, files)
        assert torch.equal(target, wanted.double())
        whole_target = torch.zeros(1100, 5000)
        copy(found.transposed(), whole_target, files)
    assert torch.equal(whole_target, dense.t())
    assert whole(dense.shape) == ((0, 5000), (0, 1100))
