"""Branches of a model stay branches when it is captured: which block reads which, and that nothing else ties them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import networkx
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor, nn

from partita.adapters.verify.planned import verify_plan
from partita.cluster import parse_cluster
from partita.draft import Draft, drafted, op_assign, op_order, op_trans
from partita.graph import Graph
from partita.graph.edges import block_edges
from partita.plan import Axis, Plan
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from tests.capture.branch_models import (
    Children,
    EmbeddedFirst,
    Ends,
    ReadEarly,
    Sum,
    SumReadBySides,
    SumReadTwice,
    TwoProjections,
    UNet,
    blip,
    clip,
    described_images,
    images_among_tokens,
    images_and_tokens,
    llava,
    pictures,
    speech,
    vectors,
    whisper,
)
from tests.capture.models import exported, from_config
from tests.recipes.graphs import randomised, run

A, B, TRUNK, SIDE = (f"{name}.0 {name}.1" for name in ("a", "b", "trunk", "side"))
# Which blocks follow which: chains, of which each block reads the one before it and no other that isn't said.
SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Mapping[str, Tensor]], list[str]]] = {
    "embedded first": (
        EmbeddedFirst, vectors,
        ["embed.a.linear a.0 a.1 head", "embed.b.0 b.0 b.1 head", "embedding c.0 c.1 head"],
    ),
    "a sum": (Sum, vectors, [f"{A} {TRUNK} head", f"{B} trunk.0"]),
    "a sum that all read": (SumReadTwice, vectors, [f"{A} {TRUNK} head", f"{B} trunk.0"]),
    "a sum that two sides read": (
        SumReadBySides, vectors, [f"{A} between.0 {TRUNK} head", f"{B} between.0 {SIDE} head"],
    ),
    "ends without parameters": (Ends, vectors, [f"{A} head", f"{B} {TRUNK} head"]),
    "two projections": (TwoProjections, vectors, [f"{A} of_a {TRUNK} head", f"{B} of_b trunk.0", "of_a trunk.1"]),
    "a last layer that doesn't run": (ReadEarly, vectors, [f"embedding {A} head"]),
    "children": (Children, vectors, ["text project joint", "image joint"]),
    # What is resampled for the next level belongs to the level that made it, with the skip that is laid beside it.
    "u-net of children": (lambda: UNet(False), pictures, ["down0 down1 middle up0 up1 out", "down0 up0"]),
    "u-net of lists": (lambda: UNet(True), pictures, ["down.0 down.1 middle up.0 up.1 head", "down.0 up.0"]),
}  # fmt: skip


def edges(chains: list[str]) -> set[tuple[str, str]]:
    found: networkx.DiGraph = networkx.DiGraph()
    for chain in chains:
        networkx.add_path(found, chain.split())
    return set(found.edges)


@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str) -> None:
    build, example, chains = SMALL[name]
    graph = capture_module(build, example(2), name=name).graph
    assert set(block_edges(graph)) == edges(chains)
    assert {block.name for block in graph.blocks} == {block for chain in chains for block in chain.split()}


def stack(path: str) -> str:
    return f"{path}.0 {path}.1"


VISION, TEXT = stack("vision_model.encoder.layers"), stack("text_model.encoder.layers")


@cache
def captured_clip() -> Graph:
    return capture_module(clip, images_and_tokens(2), name="clip").graph


@pytest.mark.slow
def test_towers_of_clip_meet_in_the_loss_alone() -> None:
    graph = captured_clip()
    found = networkx.DiGraph([*block_edges(graph)])
    vision, text = f"embedding {VISION} between.0".split(), f"text_model.embeddings {TEXT}".split()
    assert set(found.edges) == edges([" ".join([*tower, "head"]) for tower in (vision, text)])
    assert [block.name for block in graph.blocks] == [*vision, *text, "head"]
    for tower in (vision, text):
        assert networkx.ancestors(found, tower[-1]) == set(tower[:-1])
    assert set(graph.blocks[len(vision) - 1].parameters) == {
        "vision_model.post_layernorm.weight", "vision_model.post_layernorm.bias", "visual_projection.weight",
    }  # fmt: skip


SEQUENCES = {
    # In one block an encoder's last norm and a decoder's embedding: no layer depends on more for it.
    "whisper": (whisper, speech, stack("model.encoder.layers"), stack("model.decoder.layers")),
    "blip": (blip, described_images, VISION, stack("text_decoder.bert.encoder.layer")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQUENCES)
def test_all_layers_of_a_decoder_read_the_encoder(name: str) -> None:
    build, example, encoder, decoder = SEQUENCES[name]
    graph = capture_module(build, example(2), name=name).graph
    first, last = decoder.split()
    assert set(block_edges(graph)) == edges([f"embedding {encoder} between.0 {first} {last} head", f"between.0 {last}"])


@pytest.mark.slow
def test_a_language_model_reads_images_through_the_projector_alone() -> None:
    """The last of three vision layers doesn't run. That there are as many patches as tokens for them isn't checked."""
    batch = images_among_tokens(2)
    captured = capture_module(llava, batch, name="llava")
    vision, language = "model.vision_tower.encoder.layers", "model.language_model"
    assert set(block_edges(captured.graph)) == edges([
        f"embedding {stack(vision)} model.multi_modal_projector {stack(f'{language}.layers')} head",
        f"{language}.embed_tokens model.multi_modal_projector",
    ])  # fmt: skip
    model = randomised(llava())
    batch["pixel_values"] = batch["pixel_values"].double()
    loss = run(captured.graph, {**dict(model.named_parameters()), **captured.buffers}, batch)
    assert loss.item() == pytest.approx(model(**batch).loss.item(), rel=1e-6)


@pytest.mark.slow
def test_blocks_of_t5_are_those_of_its_configuration() -> None:
    """The first layer of a stack makes the positions' bias that all of it read."""
    ends = ["decoder.block.0 decoder.block.2", "between.0 decoder.block.1", "between.0 decoder.block.2"]
    decoder = " ".join(f"decoder.block.{layer}" for layer in range(3))
    wanted = edges([f"embedding {stack('encoder.block')} between.0 {decoder} head", *ends])
    for graph in (exported("t5-gated-tiny"), from_config("t5-gated-tiny")):
        assert set(block_edges(graph)) == wanted


def plan(graph: Graph, towers: int) -> Plan:
    """The towers beside each other in so many micro-batches; the loss, which compares all samples, on the whole."""
    names = [block.name for block in graph.blocks]
    text = names.index("text_model.embeddings")

    def mine(draft: Draft) -> None:
        for device, (blocks, turns) in enumerate(((names[:text], towers), (names[text:-1], towers), (names[-1:], 1))):
            op_assign(draft, blocks, [device])
            op_trans(draft, blocks, "batch", Axis("micro", turns, "turns"))
        op_order(draft, "kfkb")

    problem = Problem(graph, parse_cluster("1x3xa100-80gb"), 4, precision="fp32", target="partita")
    return drafted(mine, "towers", problem, {})


@pytest.mark.slow
def test_towers_of_clip_beside_each_other_are_one_device() -> None:
    verdict = verify_plan(plan(captured_clip(), 2), clip, images_and_tokens, "clip")
    assert verdict.equal, verdict.difference
    assert verdict.devices == 3
    assert len(set(verdict.losses)) == verdict.steps == 3
