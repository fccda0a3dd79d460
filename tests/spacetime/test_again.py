"""Selective recomputation: which ops are attention's, and that they stand side by side in what lowering makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.errors import PlanError
from partita.graph import Block, Graph, Op, Tensor, check
from partita.graph.attention import insides
from partita.plan import Axis, Cut
from partita.spacetime.again import together
from partita.spacetime.program import LocalOp, Program, Region
from partita.spacetime.prove import prove
from tests.runtime.programs import Layout, program
from tests.spacetime.programs import graph

# Each line: name, kind, what it reads (w… are parameters), all in one block; an op makes what it is called.
WRITTEN = """
    q linear x wq
    k linear x wk
    scores matmul q k
    scaled mul scores
    bias linear x wb
    biased add scaled bias
    p softmax biased
    entropy sum p
    v linear x wv
    dropped dropout p
    o matmul dropped v
    out linear o wo
    end add out entropy
"""
# A router's softmax chooses among products with parameters; one at an end has nothing behind it.
OTHERS = """
    routed linear x wr
    chances softmax routed
    product bmm chances x
    seen matmul product x
    last softmax seen
    end add last product
"""
# Two softmaxes of one product of scores, as in differential attention.
TWO = """
    scores matmul x x
    first softmax scores
    negative neg scores
    second softmax negative
    both sub first second
    o matmul both x
    end linear o wo
"""


def model(lines: str) -> Graph:
    ops, tensors = [], {"x": Tensor("x", (4, 4), role="input", gradient=False)}
    for line in lines.strip().splitlines():
        name, kind, *read = line.split()
        for one in read:
            if one.startswith("w"):
                tensors[one] = Tensor(one, (4, 4), role="parameter")
        tensors[name] = Tensor(name, (4, 4))
        ops.append(Op(name, kind, tuple(read), (name,), "b"))
    weights = tuple(name for name in tensors if name.startswith("w"))
    return check(Graph("m", 4, None, tuple(tensors.values()), tuple(ops), (Block("b", weights),), ("x",), ("end",)))


def local(found: Graph) -> list[LocalOp]:
    return [LocalOp(op, "whole", ((4, 4),)) for op in found.ops]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (WRITTEN, [{"scores", "scaled", "biased", "p", "dropped", "o"}]),
        (OTHERS, []),
        (TWO, [{"scores", "first", "negative", "second", "both", "o"}]),
        ("a scaled_dot_product_attention x x x\n c attention a a a\n end linear c wo", [{"a"}, {"c"}]),
        ("end linear x wo", []),
    ],
)
def test_what_is_attention_s(lines: str, wanted: list[set[str]]) -> None:
    assert [set(names) for names in insides(model(lines), "b")] == wanted


def test_other_ops_go_before_or_after() -> None:
    found = model(WRITTEN)
    ops, runs = together(local(found), (), insides(found, "b"), "b")
    assert runs == [(4, 10)]
    assert [one.op.name for one in ops] == (
        ["q", "k", "bias", "v", "scores", "scaled", "biased", "p", "dropped", "o", "entropy", "out", "end"]
    )


@pytest.mark.parametrize(
    ("region", "words"),
    [
        (Region(0, 4, "shard", 2), 'op "scores" runs in turns of "shard" and op "biased" doesn\'t'),
        (Region(8, 9, "shard", 2), 'between its ops "scores" and "o" others run in turns of "shard"'),
    ],
)
def test_attention_in_turns_and_outside_of_them_is_refused(region: Region, words: str) -> None:
    found = model(WRITTEN)
    with pytest.raises(
        PlanError, match=r'block "b" can\'t compute its attention again: .* recompute=full and none'
    ) as e:
        together(local(found), (region,), insides(found, "b"), "b")
    assert words in str(e.value)


def test_an_attention_inside_another_is_refused() -> None:
    """What reads the scores of one makes the values of the other."""
    found = model(
        """
        scores matmul x x
        other matmul x x
        p softmax scores
        r softmax other
        s matmul r p
        o matmul p s
        end linear o wo
        """
    )
    attentions = [{"scores", "p", "o"}, {"other", "s"}]
    with pytest.raises(PlanError, match='op "scores" is one of an attention that depends on parts of another'):
        together(local(found), (), attentions, "b")


LAYOUTS = (
    Layout(recompute="selective"),
    Layout(tp=2, recompute="selective"),
    Layout(recompute="selective", other_axes=(Axis("shard", 2, "turns"),), cuts=(Cut("heads", ("shard",)),)),
)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, layout) for name in ("gpt2", "llama", "t5", "swin") for layout in LAYOUTS),
        *(pytest.param("exported", layout, marks=pytest.mark.slow) for layout in LAYOUTS),
        # Its three heads can't be halved.
        ("vit", LAYOUTS[0]),
    ],
)
def test_a_run_is_one_attention(name: str, layout: Layout) -> None:
    """Lowered, which proves it; of every attention of the model one run, and no other op is in one."""
    found = graph(name)
    made = program(found, layout)
    for segment in made.pieces[0].segments:
        runs = [{one.op.name for one in segment.ops[start:stop]} for start, stop in segment.again]
        assert runs == [set(names) for names in insides(found, segment.block)]
    plain = program(found, replace(layout, recompute="none"))
    assert sum(len(segment.again) for segment in made.pieces[0].segments) >= 2
    for ours, theirs in zip(made.pieces[0].segments, plain.pieces[0].segments, strict=True):
        assert replace(ours, ops=(), again=()) == replace(theirs, ops=())
        assert sorted(map(str, ours.ops)) == sorted(map(str, theirs.ops))


def with_runs(found: Program, *runs: tuple[int, int], recompute: bool = False) -> Program:
    """The program whose first layer has these runs."""
    piece = found.pieces[0]
    layer = replace(piece.segments[1], again=runs, recompute=recompute)
    segments = (piece.segments[0], layer, *piece.segments[2:])
    return replace(found, pieces=(replace(piece, segments=segments), *found.pieces[1:]))


def test_runs_that_can_not_be_are_refused() -> None:
    shards = Layout(other_axes=(Axis("shard", 2, "turns"),), cuts=(Cut("hidden", ("shard",)),))
    found, sharded = program(graph("gpt2"), Layout()), program(graph("gpt2"), shards)
    assert prove(graph("gpt2"), with_runs(found, (0, 2), (2, 3)))
    count = len(found.pieces[0].segments[1].ops)
    for runs in (((2, 2),), ((3, 5), (4, 6)), ((4, 6), (1, 2)), ((0, count + 1),)):
        with pytest.raises(PlanError, match=rf"has {count} ops, of which the runs .* can't be computed again"):
            prove(graph("gpt2"), with_runs(found, *runs))
    with pytest.raises(PlanError, match="is computed again as a whole, and runs of its ops once more"):
        prove(graph("gpt2"), with_runs(found, (0, 2), recompute=True))
    (region,) = sharded.pieces[0].segments[1].regions
    for run in (
        (region.start - 1, region.stop),
        (region.start + 1, region.stop + 1),
        (region.start - 1, region.stop + 1),
    ):
        with pytest.raises(PlanError, match=r'runs in turns of "shard"; the run of ops .* has others too'):
            prove(graph("gpt2"), with_runs(sharded, run))
    assert prove(graph("gpt2"), with_runs(sharded, (region.start, region.start + 1)))
