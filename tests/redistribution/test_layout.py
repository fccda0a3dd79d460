"""Layouts: the text form, and who holds what, against cuts made by NumPy one axis after another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.redistribution import ArrayType, Layout, Mesh

MESH = Mesh.of(x=2, y=3, z=1)


def chunks(array: np.ndarray, pieces: int, dim: int) -> list[np.ndarray]:
    """torch.chunk, but always ``pieces`` of them."""
    size = -(-array.shape[dim] // pieces)
    return [np.take(array, range(min(i * size, array.shape[dim]), min((i + 1) * size, array.shape[dim])), axis=dim)
            for i in range(pieces)]  # fmt: skip


layouts = st.permutations(list(MESH.sizes)).flatmap(
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
    kind = ArrayType(shape, layout, MESH)
    for place, point in enumerate(itertools.product(*(range(size) for size in MESH.sizes.values()))):
        at = dict(zip(MESH.sizes, point, strict=True))
        part = whole
        for dim, axes in enumerate(layout.dims):
            for axis in axes:
                part = chunks(part, MESH.sizes[axis], dim)[at[axis]]
        held = whole[tuple(slice(*interval) for interval in kind.boxes[place])]
        assert held.shape == part.shape == kind.local_shape(place)
        assert (held == part).all()


def test_c15_two_axes_on_one_dim() -> None:
    kind = ArrayType((4, 1), Layout.parse("tp.dp,-"), Mesh.of(dp=2, tp=2))
    rows = {(dp, tp): kind.boxes[2 * dp + tp, 0, 0] for dp in range(2) for tp in range(2)}
    assert rows == {(0, 0): 0, (0, 1): 2, (1, 0): 1, (1, 1): 3}


def test_c16_uneven_and_empty_shards() -> None:
    kind = ArrayType((5, 10), Layout.parse("a,-"), Mesh.of(a=4))
    held = [kind.local_shape(i)[0] for i in range(4)]
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
        ArrayType((2, 2), Layout.parse("w,-"), MESH)
    with pytest.raises(InputError, match="2 entries, the tensor \\[2\\] has 1 dims"):
        ArrayType((2,), Layout.parse("x,-"), MESH)
