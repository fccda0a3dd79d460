"""Layouts in all notations: what each means, what is refused and with which words, and printing back what was read."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import InputError
from partita.redistribution import ArrayType, Layout, Mesh
from partita.redistribution.partition_spec import as_partition_spec
from partita.redistribution.placements import as_placements
from partita.redistribution.spelling import read_layout
from tests.redistribution.problems import any_layout, any_mesh

CUBE = Mesh.parse("x=2,y=3,z=4")


@pytest.mark.parametrize(
    ("dims", "ours", "placements", "spec", "others"),
    [
        (2, "x.y,-+z", "S(0),S(0),P(sum)", "P(('x', 'y'), None, unreduced={'z'})",
         ["Shard(0), Shard(dim=0), Partial()", "(Shard(dim=0), Shard(dim=0), Partial(sum))", " x . y , - + z "]),
        (2, "-,-", "R,R,R", "P(None, None)", ["Replicate(),R,Replicate()", "P()", "P(None)", "PartitionSpec(None,)"]),
        (2, "x,-", "S(0),R,R", "P('x', None)", ["[S(0), R, R]", "(Shard(dim=0), Replicate(), Replicate())", 'P("x",)']),
        (2, "-,z", "R,R,S(1)", "P(None, 'z')", ["R,R,S(-1)", "P((), ('z',))"]),
        (2, "y.x,-", "_S(0, 3),S(0),R", "P(('y', 'x'), None)",
         ["SS(0,3),S(0),R", "_StridedShard(dim=0, sf=3),Shard(dim=0),R", "_StridedShard(0, split_factor=3),S(0),R"]),
        (1, "z.x.y", "_S(0, 4),_S(0, 4),S(0)", "P(('z', 'x', 'y'))", ["P(('z','x','y'),)"]),
        (1, "x.z.y", "S(0),_S(0, 4),S(0)", "P(('x', 'z', 'y'))", []),
        (1, "z.y.x", "_S(0, 12),_S(0, 4),S(0)", "P(('z', 'y', 'x'))", []),
        (1, "-+x.y.z", "P(sum),P(sum),P(sum)", "P(None, unreduced={'x', 'y', 'z'})",
         ["P,P,P", "P(sum),Partial(sum),Partial('sum')", "P(unreduced={'z','x','y'})", "-+z.x.y"]),
        (0, "", "R,R,R", "P()", []),
        (0, "+y", "R,P(sum),R", "P(unreduced={'y'})", []),
    ],
)  # fmt: skip
def test_one_layout_in_all_notations(dims: int, ours: str, placements: str, spec: str, others: list[str]) -> None:
    layout = Layout.parse(ours)
    assert (str(layout), as_placements(layout, CUBE), as_partition_spec(layout)) == (ours, placements, spec)
    texts = [ours, placements, spec, *others]
    assert {text: read_layout(text, CUBE, dims) for text in texts} == dict.fromkeys(texts, layout)


def test_what_is_printed_is_read_back() -> None:
    random = Random(7)
    for _ in range(2000):
        mesh = any_mesh(random)
        dims = random.randrange(5)
        layout = any_layout(random, mesh, dims)
        for text in (str(layout), as_partition_spec(layout)):
            assert read_layout(text, mesh, dims) == layout, (text, mesh)
        text = as_placements(layout, mesh)
        found = read_layout(text, mesh, dims)
        if 1 not in mesh.sizes.values():
            assert found == layout, (text, mesh)
        shape = tuple(random.randint(0, 9) for _ in range(dims))
        one, two = ArrayType(shape, found, mesh), ArrayType(shape, layout, mesh)
        np.testing.assert_array_equal(one.boxes, two.boxes)
        np.testing.assert_array_equal(one.parts, two.parts)


def test_placements_mean_what_torch_makes_of_them() -> None:
    """Each placement in turn cuts what the ones before it have left, as DTensor distributes a tensor."""
    import torch
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    random, strided = Random(11), 0
    for _ in range(100):
        mesh = any_mesh(random)
        dims = random.randint(1, 2)
        layout = any_layout(random, mesh, dims, sums=False)
        shape = tuple(mesh.size(axes) * random.randint(1, 2) for axes in layout.dims)
        text = as_placements(layout, mesh)
        strided += "_S" in text
        names = {"S": Shard, "_S": lambda dim, pieces: _StridedShard(dim, split_factor=pieces), "R": Replicate()}
        placements = eval(f"({text},)", names)
        assert read_layout(str(placements), mesh, dims) == read_layout(text, mesh, dims)
        whole = torch.arange(prod(shape)).reshape(shape)
        kind = ArrayType(shape, layout, mesh)
        for place in range(len(mesh.devices)):
            local = whole
            for (axis, size), placement in zip(mesh.axes, placements, strict=True):
                if not isinstance(placement, Replicate):
                    pieces, _ = placement._split_tensor(local, size, with_padding=False)
                    local = pieces[mesh.coordinates[axis][place]]
            held = whole[tuple(slice(start, stop) for start, stop in kind.boxes[place])]
            assert torch.equal(local, held), (text, mesh, place)
    assert strided > 5


def test_axes_named_like_placements_are_axes() -> None:
    mesh = Mesh.parse("R=2,P=3")
    assert read_layout("R,P", mesh, 2) == Layout((("R",), ("P",)))
    assert read_layout("S(0),R", mesh, 2) == Layout((("R",), ()))
    assert read_layout("P('R','P')", mesh, 2) == Layout((("R",), ("P",)))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("x,w", ['"x,w"', 'no axis "w"', "Known: x, y, z"]),
        ("x", ['"x" has 1 entries, the tensor 2 dims']),
        ("x,y,z", ['"x,y,z" has 3 entries, the tensor 2 dims']),
        ("x,x", ['"x" occurs twice']),
        ("x,?", ['"?" is neither "-" nor mesh axes']),
        ("S(0),R", ['"S(0),R"', "2 entries", '"x=2,y=3,z=4" has 3 axes']),
        ("S(2),R,R", ['"S(2)" for a tensor of 2 dims', "S(0) to S(1) work"]),
        ("S(-3),R,R", ['"S(-3)"', "S(0) to S(1) work"]),
        ("S(0),,R", ['"" is none', "S(0), _S(0, 2), R and P"]),
        ("S(0)),R,R", ['"S(0))" is none']),
        ("S(0),x,R", ['"x" is none']),
        ("S(x),R,R", ['"S(x)" is none']),
        ("_S(0,2),S(0),R", ['"_S(0,2)"', "no 2 pieces", "1 and 3 work"]),
        ("R,R,_S(0,2)", ['"_S(0,2)"', "no 2 pieces", "1 works"]),
        ("P(avg),R,R", ['"P(avg)"', 'along the axis "x"', "divide what each device has by 2", "P(sum)"]),
        ("R,Partial(avg),R", ['"Partial(avg)"', 'along the axis "y"', "divide what each device has by 3"]),
        ("R,R,P(max)", ['"P(max)"', 'not of "max"', "R works"]),
        ("P('x'),R,R", ['"P(\'x\')" names no way to reduce', "one P(…) around the entries of all dims"]),
        ("R,R,P(x)", ['"P(x)" names no way to reduce', "P('x', None)"]),
        ("P('w', None)", ['no axis "w"', "Known: x, y, z"]),
        ("P(x, None)", ['"x" is neither None nor a mesh axis in quotes']),
        ("P('x', None, 'y')", ["has 3 entries, the tensor 2 dims"]),
        ("P('x',,)", ['"" is neither None']),
        ("P('x','x')", ['"x" occurs twice']),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_quoted(text: str, facts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read_layout(text, CUBE, 2)
    assert [fact for fact in facts if fact not in str(caught.value)] == [], str(caught.value)


WORDS = ["x", "y", "z", "w", "S", "_S", "R", "P", "Shard", "Partial", "None", "sum", "avg", "unreduced=", "dim=", "sf="]


@given(st.lists(st.sampled_from([*WORDS, *"(){}[],.+-'\" 0127"]), max_size=14).map("".join), st.integers(0, 3))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_layout_of_the_tensor_or_an_input_error(text: str, dims: int) -> None:
    with suppress(InputError):
        layout = read_layout(text, CUBE, dims)
        assert ArrayType((2,) * dims, layout, CUBE).layout == layout
