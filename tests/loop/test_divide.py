"""Batches of a copy's ranks as micro-batches: every sample once, in order, in parts as even as can be."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.adapters.torch.loop.batch import Shape
from partita.adapters.torch.loop.divide import Part, Slice, divide


def shape(samples: int, length: int = 4, scalar: bool = False, table: bool = False) -> Shape:
    tensors = [("x", (samples, length), torch.int64)]
    tensors += [("scale", (), torch.float32)] if scalar else []
    # Of no sample: its first dim is never that of the samples.
    tensors += [("table", (1000, 2), torch.float32)] if table else []
    return Shape(tuple(tensors), (), samples)


def samples_of(parts: list[Part]) -> list[tuple[int, int]]:
    return [(one.batch, row) for part in parts for one in part.slices for row in range(one.start, one.stop)]


def in_order(shapes: list[Shape]) -> list[tuple[int, int]]:
    return [(batch, row) for batch, one in enumerate(shapes) for row in range(one.samples)]


batch_shapes = st.lists(
    st.builds(shape, st.integers(1, 9), st.sampled_from([4, 5]), st.booleans(), st.booleans()), min_size=1, max_size=5
)


@given(batch_shapes, st.integers(1, 12), st.booleans())
def test_every_sample_once_and_in_order(shapes: list[Shape], micro_batches: int, apart: bool) -> None:
    parts = divide(shapes, micro_batches, apart=apart)
    assert samples_of(parts) == in_order(shapes)
    for part in parts:
        assert part.shape.samples == sum(one.stop - one.start for one in part.slices) > 0
        assert part.shape.tensors[0][1][0] == part.shape.samples
        others = {name: shape for name, shape, _ in part.shape.tensors[1:]}
        assert others.get("scale", ()) == ()
        assert others.get("table", (1000, 2)) == (1000, 2)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 12))
def test_alike_batches_are_joined(samples: int, count: int, micro_batches: int) -> None:
    parts = divide([shape(samples)] * count, micro_batches)
    sizes = [part.shape.samples for part in parts]
    assert len(parts) == min(micro_batches, samples * count)
    assert max(sizes) - min(sizes) <= 1


@given(batch_shapes, st.integers(1, 12))
def test_apart_no_part_has_samples_of_two(shapes: list[Shape], micro_batches: int) -> None:
    parts = divide(shapes, micro_batches, apart=True)
    assert all(len(part.slices) == 1 for part in parts)
    each = -(-micro_batches // len(shapes))
    for batch, one in enumerate(shapes):
        assert sum(part.slices[0].batch == batch for part in parts) == min(each, one.samples)


def test_by_hand() -> None:
    three = shape(3)
    assert divide([three, three], 2) == [Part(three, (Slice(0, 0, 3),)), Part(three, (Slice(1, 0, 3),))]
    assert divide([three, three], 3) == [
        Part(shape(2), (Slice(0, 0, 2),)),
        Part(shape(2), (Slice(0, 2, 3), Slice(1, 0, 1))),
        Part(shape(2), (Slice(1, 1, 3),)),
    ]
    # Something that belongs to one batch alone keeps them apart, as another length does.
    tables = [shape(2, table=True)] * 2
    assert [part.slices for part in divide(tables, 1)] == [(Slice(0, 0, 2),), (Slice(1, 0, 2),)]
    assert [part.slices for part in divide([shape(2, 4), shape(2, 5)], 1)] == [(Slice(0, 0, 2),), (Slice(1, 0, 2),)]
