"""Layouts: the text form, and who holds what, against cuts made by NumPy one axis after another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.redistribution import Layout

MESH = {"x": 2, "y": 3, "z": 1}


def chunks(array: np.ndarray, pieces: int, dim: int) -> list[np.ndarray]:
    """torch.chunk, but always ``pieces`` of them."""
    size = -(-array.shape[dim] // pieces)
    return [np.take(array, range(min(i * size, array.shape[dim]), min((i + 1) * size, array.shape[dim])), axis=dim)
            for i in range(pieces)]  # fmt: skip


layouts = st.permutations(list(MESH)).flatmap(
    lambda axes: st.lists(st.integers(0, 3), min_size=3, max_size=3).map(
        lambda homes: Layout(
            tuple(tuple(a for a, home in zip(axes, homes, strict=True) if home == dim) for dim in range(3)),
            tuple(a for a, home in zip(axes, homes, strict=True) if home == 3),
        )
    )
)


@given(layouts)
def test_text_round_trip(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@given(layouts, st.tuples(*[st.integers(0, 7)] * 3))
def test_intervals_are_nested_chunks(layout: Layout, shape: tuple[int, int, int]) -> None:
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    for place in itertools.product(*(range(size) for size in MESH.values())):
        at = dict(zip(MESH, place, strict=True))
        part = whole
        for dim, axes in enumerate(layout.dims):
            for axis in axes:
                part = chunks(part, MESH[axis], dim)[at[axis]]
        held = whole[tuple(slice(*interval) for interval in layout.intervals(shape, MESH, at))]
        assert held.shape == part.shape == layout.local_shape(shape, MESH, at)
        assert (held == part).all()


def test_c15_two_axes_on_one_dim() -> None:
    mesh = {"dp": 2, "tp": 2}
    rows = {
        (dp, tp): Layout.parse("tp.dp,-").intervals((4, 1), mesh, {"dp": dp, "tp": tp})[0][0]
        for dp in range(2)
        for tp in range(2)
    }
    assert rows == {(0, 0): 0, (0, 1): 2, (1, 0): 1, (1, 1): 3}


def test_c16_uneven_and_empty_shards() -> None:
    held = [Layout.parse("a,-").local_shape((5, 10), {"a": 4}, {"a": i})[0] for i in range(4)]
    assert held == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("text", "fact"),
    [("x,x", '"x" occurs twice'), ("x+x", '"x" occurs twice'), ("a b,-,?", '"?"'), ("x,,y", '""'), ("-+", 'after "+"')],
)
def test_bad_layouts(text: str, fact: str) -> None:
    with pytest.raises(InputError, match=r".*") as caught:
        Layout.parse(text)
    assert fact in str(caught.value)


def test_unknown_axis_and_rank() -> None:
    with pytest.raises(InputError, match='no axis "w"; it has x, y, z'):
        Layout.parse("w,-").intervals((2, 2), MESH, {})
    with pytest.raises(InputError, match="2 entries, the tensor \\[2\\] has 1 dims"):
        Layout.parse("x,-").intervals((2,), MESH, {})
