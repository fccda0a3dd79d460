"""The code of stages that are cut along several axes: which collectives stand where; any change to it is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
import torch

from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Axis, Cut
from partita.plugins.capture_torch import capture_module
from partita.recipes.mixture.model import MixtureOfExperts, example
from partita.recipes.mixture.sizes import SIZES
from partita.spacetime.program import COLLECTIVES, Form, LocalOp, Piece, Program, Region
from partita.spacetime.prove_code import prove_code
from tests.runtime.programs import Layout, program
from tests.spacetime.layouts import LAYOUTS, SAMPLES, in_turns
from tests.spacetime.programs import configured, with_ops, with_pieces

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow


@cache
def graph(name: str) -> Graph:
    """Models of one layer: GPT-2 by its configuration, and a causal mixture of experts, exported."""
    if name == "gpt2":
        return configured("gpt2-tiny", tie_word_embeddings=True, num_hidden_layers=1, vocab_size=128)
    size = replace(SIZES["mixture-tiny"], layers=1, width=8, expert_width=8, vocabulary=16, context=8)
    return capture_module(lambda: MixtureOfExperts(size), example(8)(2), name=name, dtype=torch.float64).graph


@cache
def lowered(name: str, layout: str) -> Program:
    return program(graph(name), LAYOUTS[layout])


def ops(found: Program) -> list[LocalOp]:
    return [local for piece in found.pieces for segment in piece.segments for local in segment.ops]


def collectives(name: str, layout: str) -> dict[str, int]:
    """How many there are of each form and axis."""
    return dict(Counter(f"{o.form} {o.axes[-1]}" for o in ops(lowered(name, layout)) if o.form in COLLECTIVES))


@pytest.mark.parametrize(
    ("name", "layout", "wanted"),
    [
        # One layer has two pairs of an all-gather and a reduce-scatter; the head gathers once more.
        ("gpt2", "sequence", {"slice tensor": 2, "gather_entered tensor": 3, "scatter tensor": 2}),
        # Keys and values are put together; the loss is added up.
        ("gpt2", "context", {"slice context": 3, "gather_entered context": 2, "sum context": 1}),
        ("gpt2", "co-shard", {"enter shard": 2, "slice shard": 6, "sum shard": 2}),
        # The tokens go to their experts and come back.
        ("mixture", "experts", {"slice expert": 2, "exchange expert": 2, "sum expert": 1, "enter expert": 1}),
    ],
)
def test_the_collectives_of_one_layer(name: str, layout: str, wanted: dict[str, int]) -> None:
    assert collectives(name, layout) == wanted


def test_what_flows_leaves_partial_gradients() -> None:
    """Along ``context`` of every parameter; along ``tensor`` of those that see only a part of the tokens."""
    (piece,) = lowered("gpt2", "context and sequence").pieces
    assert set(piece.partial) == set(piece.parameters)
    both = {name for name, axes in piece.partial.items() if axes == ("context", "tensor")}
    whole = {name for name, shard in piece.parameters.items() if shard is None}
    assert both == whole
    assert "transformer.h.0.mlp.c_proj.bias" in both


def test_turns_see_their_slice_of_a_device() -> None:
    (piece,) = lowered("gpt2", "co-shard inside tensor").pieces
    (block,) = (segment for segment in piece.segments if segment.regions)
    assert [(region.axis, region.size) for region in block.regions] == [("shard", 2), ("shard", 2)]
    fused = next(o for o in block.ops if o.form == "slice" and o.op.inputs[0].endswith("c_attn.weight"))
    # A device has half of the queries, keys and values; a turn has half of that of each.
    columns = graph("gpt2").tensor[fused.op.inputs[0]].shape[1]
    assert fused.op.attributes == {"dim": 1, "parts": 3, "of": 6}
    assert fused.shapes[0][1] == columns // 4


CASES = [("gpt2", name) for name in LAYOUTS if "experts" not in name] + [
    ("mixture", name) for name in ("experts", "co-shard and context", "samples and context", "sequence")
]
IDS = [" ".join(case) for case in CASES]
# Different words for the same: a linear layer without a bias.
SAME = ({"column", "local"}, {"product", "local"})


def refused(name: str, found: Program) -> bool:
    """Whether the proof of the code refuses it."""
    try:
        prove_code(graph(name), found.pieces, [found.inner[stage] for stage in range(len(found.pieces))])
    except PlanError:
        return True
    return False


@pytest.mark.parametrize(("name", "layout"), CASES, ids=IDS)
def test_any_op_left_out_or_of_another_form(name: str, layout: str) -> None:
    found = lowered(name, layout)
    assert not refused(name, found)
    accepted = []
    for odd in ops(found):
        if not refused(name, with_ops(found, lambda op, odd=odd: [] if op is odd else [op])):
            accepted.append((odd.op.name, "left out"))
        for form in get_args(Form):
            if form == odd.form or ({form, odd.form} in SAME and odd.op.kind in ("linear", "addmm")):
                continue
            changed = replace(odd, form=form)
            if not refused(name, with_ops(found, lambda op, odd=odd, changed=changed: [changed if op is odd else op])):
                accepted.append((odd.op.name, odd.form, form))
    assert accepted == []


def other_words(local: LocalOp) -> Iterator[LocalOp]:
    """The op with any number of its collective changed, or over another axis."""
    attributes = local.op.attributes
    for path in [key for key in ("source", "target") if key in attributes] or [""]:
        at = attributes[path] if path else attributes
        # What pieces there were is known: "of" says only what they become.
        made = local.form in ("scatter", "slice") or path == "target"
        for key in ("dim", "parts", "size", *(("of",) if made else ())):
            for value in {at[key] + 1, at[key] * 2} - {at[key]} if key in at else ():
                changed = {**at, key: value}
                yield replace(
                    local, op=replace(local.op, attributes={**attributes, path: changed} if path else changed)
                )
    for axis in ("context", "tensor", "expert", "shard"):
        if (axis,) != local.axes:
            yield replace(local, axes=(axis,))


@pytest.mark.parametrize(("name", "layout"), CASES, ids=IDS)
def test_any_collective_with_other_numbers(name: str, layout: str) -> None:
    found = lowered(name, layout)
    accepted = [
        (odd.op.name, changed.op.attributes, changed.axes)
        for odd in ops(found)
        if odd.form in COLLECTIVES
        for changed in other_words(odd)
        if not refused(name, with_ops(found, lambda op, odd=odd, changed=changed: [changed if op is odd else op]))
    ]
    assert accepted == []


@pytest.mark.parametrize(("name", "layout"), CASES, ids=IDS)
def test_any_gradient_summed_over_other_axes(name: str, layout: str) -> None:
    found = lowered(name, layout)
    accepted = []
    for stage, piece in enumerate(found.pieces):
        for parameter in piece.parameters:
            if not graph(name).tensor[parameter].gradient:
                continue
            for axis in [axis.name for axis in found.inner[stage] if axis.size > 1]:
                axes = piece.partial.get(parameter, ())
                other = tuple(a for a in axes if a != axis) if axis in axes else (*axes, axis)
                changed = with_pieces(found, _with_partial(stage, {**piece.partial, parameter: other}))
                if not refused(name, changed):
                    accepted.append((stage, parameter, axes, other))
    assert accepted == []


def _with_partial(stage: int, partial: dict[str, tuple[str, ...]]) -> Callable[[Piece], Piece]:
    return lambda piece: replace(piece, partial=partial) if piece.stage == stage else piece


@pytest.mark.parametrize("layout", ["co-shard", "co-shard inside tensor", "co-shard and context"])
def test_any_region_with_other_bounds(layout: str) -> None:
    found = lowered("gpt2", layout)
    assert found.pieces[0].segments[1].regions
    for index, region in enumerate(found.pieces[0].segments[1].regions):
        for other in (
            replace(region, start=region.start + 1), replace(region, stop=region.stop - 1),
            replace(region, size=region.size * 2), replace(region, axis="context"), replace(region, axis="odd"),
            replace(region, stop=1000), None,
        ):  # fmt: skip
            assert refused("gpt2", with_pieces(found, _with_region(index, other))), other


def _with_region(index: int, other: Region | None) -> Callable[[Piece], Piece]:
    def change(piece: Piece) -> Piece:
        segment = piece.segments[1]
        regions = [*segment.regions]
        regions[index : index + 1] = [other] if other else []
        changed = replace(segment, regions=tuple(regions))
        return replace(piece, segments=(piece.segments[0], changed, *piece.segments[2:]))

    return change


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(cuts=(Cut("sequence", ("context",)),), other_axes=(Axis("context", 3, "space"),)),
         ["no sequence", "context=3", "8"]),
        (Layout(cuts=(Cut("sequence", ("shard",)),), other_axes=(Axis("shard", 2, "turns"),)),
         ["sequence", "in turns"]),
        (Layout(cuts=(Cut("vocabulary", ("shard",)),), other_axes=(Axis("shard", 2, "turns"),)),
         ["vocabulary", "in turns", "add up"]),
        (Layout(cuts=in_turns(), other_axes=(Axis("shard", 3, "turns"),)), ["shard=3", "heads=4", "1, 2 and 4"]),
        (Layout(tp=2, cuts=in_turns("tensor"), other_axes=(Axis("shard", 4, "turns"),)), ["tp·shard=8", "heads=4"]),
        (Layout(tp=2, cuts=(Cut("heads", ("context", "tensor")),), other_axes=(Axis("context", 2, "space"),)),
         ["heads", "context and tensor", "one of them"]),
        (Layout(cuts=(SAMPLES, Cut("sequence", ("expert",))), other_axes=(Axis("expert", 2, "space"),)),
         ["batch and sequence", "one of them"]),
    ],
)  # fmt: skip
def test_what_can_not_be_cut_is_said_with_its_numbers(layout: Layout, words: list[str]) -> None:
    with pytest.raises(PlanError) as error:
        program(graph("gpt2"), layout)
    assert [word for word in words if word not in str(error.value)] == []
