"""Signatures: spelling, the table by kind and shapes, and reshapes against what NumPy's reshape does to pieces."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partita.errors import ModelError
from partita.graph import Block, Graph, Op, Tensor
from partita.graph.signature import Dim, Signature, bind, parse
from partita.graph.table import signature
from partita.graph.views import view_signature

LABELS = ("a", "b0", "heads", "k", "n", "s_1")
dims = st.builds(
    Dim, st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique=True).map(tuple), st.integers(1, 4)
)  # fmt: skip
tensors = st.lists(dims, max_size=3).map(tuple)
sides = st.lists(tensors, max_size=3).map(tuple)


@given(sides, sides.filter(bool), st.sets(st.sampled_from(LABELS)), st.sets(st.sampled_from(LABELS)))
def test_what_is_printed_is_parsed_again(inputs, outputs, reduced, fixed):
    bare = Signature(inputs, outputs)
    reduced &= bare.labels
    made = Signature(inputs, outputs, frozenset(reduced), frozenset(fixed & bare.labels - reduced))
    assert parse(str(made)) == made


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("b s k+, n k+ -> b s n", " b  s k+,n k+->b s n "),
        ("b (h d) -> b h d^", "b ( h  d^ )->b h d"),
        ("3*n -> n, n, n", " 3*n->n,n ,n"),
        ("() -> ()", "()->()"),
        ("-> a", "->a"),
    ],
)
def test_spaces_mean_nothing(text, same):
    assert parse(text) == parse(same)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b", ['"a b"', 'no "->"']),
        ("a, -> b", ["empty place", "()"]),
        ("a ->", ["empty place"]),
        ("a -> 0*b", ['"0*b" is no dim']),
        ("a -> (b c", ["can't read", "(b c"]),
        ("a -> b -> c", ["can't read", "-> c"]),
        ("a+^ -> a", ["can't read", "^"]),
        ("a (b 1) -> a", ['"1" is no dim']),
        ("a () -> a", ['"()" is no dim']),
    ],
)
def test_what_cannot_be_read_is_quoted(text, words):
    with pytest.raises(ModelError) as error:
        parse(text)
    for word in [text, *words]:
        assert word in str(error.value)


def test_sizes_of_labels_are_what_every_tensor_allows():
    bound = bind(parse("b s (h d), b t (h e) -> b s 3*n"), [(2, 5, 12), (2, 7, 8)], [(2, 5, 9)])
    assert bound.sizes == {"b": 2, "s": 5, "t": 7, "n": 3}
    # A label of query heads and of fewer key heads: a number of pieces must divide both.
    assert bind(parse("h -> h"), [(6,)], [(4,)]).sizes == {"h": 2}
    with pytest.raises(ModelError, match=r"doesn't fit a tensor of shape \[2, 3\]"):
        bind(parse("a -> a"), [(2, 3)], [(2,)])


def printed(kind, inputs, outputs, **attributes):
    """The signature of one op on tensors of these shapes; None for a kind that isn't known."""
    names = [f"i{index}" for index in range(len(inputs))]
    made = [f"o{index}" for index in range(len(outputs))]
    op = Op("op", kind, tuple(names), tuple(made), "block", attributes=attributes)
    every = [Tensor(n, s, role="input") for n, s in zip(names, inputs, strict=True)]
    every += [Tensor(n, s) for n, s in zip(made, outputs, strict=True)]
    found = signature(Graph("g", 1, None, tuple(every), (op,), (Block("block", ()),), tuple(names), tuple(made)), op)
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "attributes", "text"),
    [
        ("linear", [(2, 5, 8), (6, 8)], [(2, 5, 6)], {}, "a0 a1 k+, n k+ -> a0 a1 n"),
        ("linear", [(2, 5, 8), (6, 8), (6,)], [(2, 5, 6)], {}, "a0 a1 k+, n k+, n -> a0 a1 n"),
        ("linear", [(5, 8), (8, 6), (6,)], [(5, 6)], {"transposed": True}, "a0 k+, k+ n, n -> a0 n"),
        ("addmm", [(6,), (5, 8), (8, 6)], [(5, 6)], {}, "n, m k+, k+ n -> m n"),
        ("addmm", [(5, 6), (5, 8), (8, 6)], [(5, 6)], {}, "m n, m k+, k+ n -> m n"),
        ("addmm", [(1, 6), (5, 8), (8, 6)], [(5, 6)], {}, "one0_0^ n, m k+, k+ n -> m n"),
        ("matmul", [(3, 1, 5, 8), (4, 8, 6)], [(3, 4, 5, 6)], {}, "a0 one0_1^ m k+, a1 k+ n -> a0 a1 m n"),
        ("matmul", [(8,), (8, 6)], [(6,)], {}, None),
        ("bmm", [(3, 5, 8), (3, 8, 6)], [(3, 5, 6)], {}, "a0 m k+, a0 k+ n -> a0 m n"),
        ("add", [(2, 5, 8), (5, 1)], [(2, 5, 8)], {}, "a0 a1 a2, a1 one1_1^ -> a0 a1 a2"),
        ("add", [(), ()], [()], {}, "(), () -> ()"),
        ("native_dropout", [(2, 8)], [(2, 8), (2, 8)], {}, "a0 a1 -> a0 a1, a0 a1"),
        ("embedding", [(99, 8), (2, 5)], [(2, 5, 8)], {}, "vocabulary+ h, a0 a1 -> a0 a1 h"),
        ("layer_norm", [(2, 5, 8), (8,), (8,)], [(2, 5, 8)], {}, "a0 a1 a2^, x0_0^, x1_0^ -> a0 a1 a2^"),
        ("layer_norm", [(2, 5, 8)], [(2, 5, 8)], {"args": [{}, [5, 8]]}, "a0 a1^ a2^ -> a0 a1^ a2^"),
        ("softmax", [(2, 5, 8)], [(2, 5, 8)], {"dim": 1}, "a0 a1^ a2 -> a0 a1^ a2"),
        ("split", [(2, 24)], [(2, 8)] * 3, {"dim": -1}, "a0 3*a1 -> a0 a1, a0 a1, a0 a1"),
        ("split", [(2, 24)], [(2, 16), (2, 8)], {"dim": -1}, "a0 a1^ -> a0 part0^, a0 part1^"),
        # Two of three parts are read: which ones, sizes can't tell.
        ("split", [(2, 24)], [(2, 8), (2, 8)], {"dim": -1}, "a0 a1^ -> a0 part0^, a0 part1^"),
        ("cat", [(2, 3), (2, 5)], [(2, 8)], {"dim": 1}, "a0 part0^, a0 part1^ -> a0 a1^"),
        ("permute", [(2, 3, 4)], [(4, 2, 3)], {"dims": [2, 0, 1]}, "a0 a1 a2 -> a2 a0 a1"),
        ("transpose", [(2, 3, 4)], [(2, 4, 3)], {"dim0": -1, "dim1": -2}, "a0 a1 a2 -> a0 a2 a1"),
        ("transpose", [(2, 3)], [(3, 2)], {}, "a0 a1 -> a1 a0"),
        ("permute", [(2, 3, 4)], [(4, 3, 2)], {}, "a0 a1 a2 -> a2 a1 a0"),
        ("sum", [(2, 5, 8)], [(2, 8)], {"dim": [1]}, "a0 a1+ a2 -> a0 a2"),
        ("sum", [(2, 5)], [()], {}, "a0+ a1+ -> ()"),
        ("mean", [(2, 5, 8)], [(2, 1, 8)], {"dim": [1]}, "a0 a1^ a2 -> a0 one1^ a2"),
        ("select", [(2, 5, 8)], [(2, 8)], {"dim": 1}, "a0 a1^ a2 -> a0 a2"),
        ("slice", [(2, 5, 8)], [(2, 3, 8)], {"dim": 1}, "a0 a1^ a2 -> a0 out1^ a2"),
        ("pad", [(2, 5, 8)], [(2, 7, 8)], {"pad": [0, 0, 1, 1]}, "a0 a1^ a2 -> a0 out1^ a2"),
        ("roll", [(2, 5, 8)], [(2, 5, 8)], {"dims": [1]}, "a0 a1^ a2 -> a0 a1^ a2"),
        ("conv2d", [(2, 3, 8, 8), (6, 3, 4, 4), (6,)], [(2, 6, 2, 2)], {},
         "b c+ y^ x^, n c+ p^ q^, n -> b n u^ v^"),
        ("index", [(9, 4), (25,)], [(25, 4)], {}, "rows^ h0, a0^ -> a0^ h0"),
        ("adaptive_avg_pool1d", [(2, 8, 9)], [(2, 8, 1)], {}, "a0 a1 a2^ -> a0 a1 out2^"),
        ("cross_entropy", [(10, 99), (10,)], [()], {}, "a0^ vocabulary+, a0^ -> ()"),
        ("attention", [(2, 5, 8), (2, 7, 4), (2, 7, 4)], [(2, 5, 8)], {"heads": 4, "kv_heads": 2},
         "b s (heads d^), b t^ (heads e^), b t^ (heads e^) -> b s (heads d^)"),
        ("attention", [(2, 5, 8)] * 3 + [(1, 4, 5, 5)], [(2, 5, 8)], {"heads": 4, "kv_heads": 4, "causal": True},
         "b s^ (heads d^), b t^ (heads e^), b t^ (heads e^), one^ heads s^ t^ -> b s^ (heads d^)"),
        ("attention", [(2, 5, 8)] * 3 + [(2, 4, 5, 5)], [(2, 5, 8)], {"heads": 4, "kv_heads": 4},
         "b s (heads d^), b t^ (heads e^), b t^ (heads e^), b heads s t^ -> b s (heads d^)"),
        ("scaled_dot_product_attention", [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), (2, 1, 5, 7)], [(2, 4, 5, 6)], {},
         "a0 heads s d^, a0 heads t^ d^, a0 heads t^ e^, a0 one_heads^ s t^ -> a0 heads s e^"),
        ("rotary", [(2, 5, 8)], [(2, 5, 8)], {"head_dim": 2}, "a0 a1^ (heads d^) -> a0 a1^ (heads d^)"),
        ("view", [(2, 5, 8)], [(2, 5, 4, 2)], {}, "d0 d1 (d3 d2) -> d0 d1 d3 d2"),
        ("view", [(6, 4)], [(8, 3)], {}, "d0^ d1^ -> d2^ d3^"),
        ("fft_rfft", [(2, 8)], [(2, 5)], {}, None),
    ],
)  # fmt: skip
def test_signature_of_a_kind_and_shapes(kind, inputs, outputs, attributes, text):
    assert printed(kind, inputs, outputs, **attributes) == text


@st.composite
def reshapes(draw):
    """Two shapes of one number of elements: products of the same primes, grouped anew, with ones between."""
    primes = draw(st.lists(st.sampled_from([2, 2, 2, 3, 5]), min_size=1, max_size=6))

    def grouped(order):
        shape, start = [], 0
        while start < len(order):
            end = draw(st.integers(start + 1, len(order)))
            shape += [1] * draw(st.integers(0, 1)) + [prod(order[start:end])]
            start = end
        return tuple(shape)

    return grouped(primes), grouped(draw(st.permutations(primes)) if draw(st.booleans()) else primes)


@given(reshapes(), st.data())
def test_reshaping_pieces_gives_the_pieces_of_the_reshaped(shapes, data):
    source, target = shapes
    found = bind(view_signature(source, target), [source], [target])
    for sides_, shape in ((found.inputs[0], source), (found.outputs[0], target)):
        assert [prod(found.sizes[label] for label in dim.factors) for dim in sides_] == list(shape)
    free = sorted(label for label in found.labels if found.cuttable(label) and found.sizes[label] > 1)
    assume(free)
    label = data.draw(st.sampled_from(free))
    size = found.sizes[label]
    pieces = data.draw(st.sampled_from([k for k in range(2, size + 1) if size % k == 0]))
    before, after = (
        next((place for place, dim in enumerate(side) if label in dim.factors), None)
        for side in (found.inputs[0], found.outputs[0])
    )
    assert before is not None
    assert after is not None
    whole = np.arange(prod(source)).reshape(source)
    local = [size // pieces if place == after else size for place, size in enumerate(target)]
    wanted = np.split(whole.reshape(target), pieces, axis=after)
    for piece, want in zip(np.split(whole, pieces, axis=before), wanted, strict=True):
        assert np.array_equal(piece.reshape(local), want)


@pytest.mark.parametrize(
    ("source", "target", "cuttable"),
    [
        ((2, 16, 64), (2, 16, 4, 16), {(0, 0), (1, 1), (2, 2)}),
        ((2, 16, 64), (32, 64), {(0, 0), (2, 1)}),
        ((2, 16, 4, 16), (2, 16, 64), {(0, 0), (1, 1), (2, 2)}),
        ((1, 4, 9), (4, 9), {(1, 0), (2, 1)}),
        ((6, 4), (8, 3), set()),
        ((5, 6, 4), (5, 8, 3), {(0, 0)}),
        ((7,), (7, 1), {(0, 0)}),
        ((0, 3), (3, 0), set()),
    ],
)
def test_dims_that_a_reshape_keeps_cuttable(source, target, cuttable):
    found = bind(view_signature(source, target), [source], [target])
    pairs = {
        (i, j)
        for i, one in enumerate(found.inputs[0])
        for j, other in enumerate(found.outputs[0])
        if one.factors[0] == other.factors[0] and found.cuttable(one.factors[0]) and found.sizes[one.factors[0]] > 1
    }
    assert pairs == cuttable
