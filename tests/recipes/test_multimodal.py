"""The multi-modal transformer: its graph against the module, its branches, its scenes, what it learns, its ranks."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor

from partita.adapters.verify.planned import verify_plan
from partita.errors import ModelError
from partita.graph import Graph
from partita.graph.cuts import block_cuts, unknown_kinds
from partita.plugins.capture_torch import capture_module
from partita.recipes.multimodal.hooks import Multimodal as Recipe
from partita.recipes.multimodal.model import Multimodal, example, factory
from partita.recipes.multimodal.scenes import Scenes
from partita.recipes.multimodal.sizes import SIZES
from tests.ranks.pool import Pool
from tests.recipes.branched import EXAMPLE, assert_joined_branches, assert_one_device, side_by_side
from tests.recipes.graphs import difference, randomised

TINY, LARGE = "multimodal-tiny", "multimodal-4x8"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_module(factory(TINY), example(TINY, torch.float64)(2), name=TINY, dtype=torch.float64).graph


def test_the_graph_computes_what_the_module_does(graph: Graph) -> None:
    batch = Scenes(SIZES[TINY], torch.float64, 0).batch(0, 2)
    errors = difference(graph, randomised(factory(TINY)()), batch)
    # Of each layer 16, of an embedding 2 or 3, of the head 6; and the loss.
    assert len(errors) == 6 * 16 + 2 + 3 + 3 + 6 + 1
    assert {name: error for name, error in errors.items() if not error <= 1e-12} == {}


def test_branches_are_independent_and_joined_by_the_head(graph: Graph) -> None:
    assert_joined_branches(graph, branches=3, layers=2, join=["head"])
    assert (graph.samples, graph.seq) == (2, None)


def test_every_layer_can_be_cut(graph: Graph) -> None:
    for block in graph.blocks[:-1]:
        assert unknown_kinds(graph, block.name) == {}
        classes = {cut.name: cut.size for cut in block_cuts(graph, block.name)}
        assert (classes["heads"], classes["hidden"]) == (4, 128)


@pytest.mark.slow
def test_a_fourth_modality(graph: Graph) -> None:
    """Branches of the tiny size, as many as the large one has, of one layer each."""
    size = replace(SIZES[TINY], inputs=(16, 12, 8, 4), layers=1)
    batch = Scenes(size, torch.float64, 0).batch(0, 2)
    found = capture_module(lambda: Multimodal(size), batch, name="four", dtype=torch.float64).graph
    assert_joined_branches(found, branches=4, layers=1, join=["head"])
    errors = difference(found, randomised(Multimodal(size)), batch)
    assert {name: error for name, error in errors.items() if not error <= 1e-12} == {}


@pytest.mark.slow
def test_the_large_one_is_graphpipes() -> None:
    """Four branches of eight layers; parameters by formula."""
    found = Recipe().partita_capture(LARGE, 1, None, "bfloat16")
    assert found is not None
    assert_joined_branches(found, branches=4, layers=8, join=["head"])
    width, positions = 1024, 256
    layer = 4 * (width * width + width) + 2 * 2 * width + 2 * 4 * width * width + 5 * width
    embeddings = 32768 * width + sum(numbers * width + width for numbers in (768, 128, 64)) + 4 * positions * width
    head = 2 * 4 * width + 4 * width * width + width + width * 4**4 + 4**4
    assert found.parameter_count == 32 * layer + embeddings + head


def test_scenes_are_drawn_by_seed_and_step_and_tell_their_class() -> None:
    size = replace(SIZES[TINY], inputs=(16, 12, 8, 6), states=3)
    scenes = Scenes(size, torch.float32, 5)
    batch = scenes.batch(7, 64)
    states = torch.stack([batch["labels"] // 3**branch % 3 for branch in range(4)], dim=1)
    assert sorted(states.unique().tolist()) == [0, 1, 2]
    # A quarter of the positions have the word of the state, and no other has a word that tells one.
    told = batch["text"] < 3
    assert torch.equal(told.sum(1), torch.full((64,), 2))
    assert torch.equal(batch["text"][told].view(64, 2), states[:, :1].expand(64, 2))
    assert len({tuple(row) for row in told.tolist()}) > 8
    for branch, modality in enumerate(size.modalities[1:], start=1):
        values = batch[modality]
        assert values.shape == (64, 8, size.inputs[branch])
        # Without the pattern of the state at a quarter of the positions, noise of mean 0 is left.
        for state in range(3):
            mean = values[states[:, branch] == state].mean((0, 1))
            assert (mean - scenes.patterns[branch][state] / 4).abs().max() < 0.35
    again, other = Scenes(size, torch.float32, 5).batch(7, 64), scenes.batch(8, 64)
    assert all(torch.equal(again[name], batch[name]) and not torch.equal(other[name], batch[name]) for name in batch)
    assert Scenes(size, torch.bfloat16, 5).batch(7, 2)["sound"].dtype == torch.bfloat16


@pytest.mark.slow
def test_it_learns_what_all_modalities_tell_and_needs_each() -> None:
    """Who knows nothing loses log 8; two modalities log 2, and all three nothing."""
    torch.manual_seed(0)
    model, scenes = factory(TINY)(), Scenes(SIZES[TINY], torch.float32, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(50):
        loss = model(**scenes.batch(step, 16)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            assert abs(loss.item() - log(8)) < 0.4

    def loss_of(batch: dict[str, Tensor]) -> float:
        with torch.no_grad():
            return float(model(**batch).loss)

    batch, strange = scenes.batch(1000, 256), scenes.batch(1001, 256)
    assert loss_of(batch) < 0.8 * log(2)
    for modality in SIZES[TINY].modalities:
        assert loss_of(batch | {modality: strange[modality]}) > log(2)


def test_a_sequence_length_and_unknown_sizes_are_errors() -> None:
    with pytest.raises(ModelError, match=r"multimodal-tiny: its name fixes the shapes .* leave out --seq 16"):
        Recipe().partita_capture(TINY, 1, 16, "float32")
    with pytest.raises(ModelError, match=r'no multi-modal transformer "multimodal-4x7". Did you mean \'multimodal-4x8'):
        Recipe().config("multimodal-4x7")


# Devices; the blocks of each stage. With three a branch each, with four the second branch is divided.
PLANS = {
    3: [["branches.0.0", "branches.0.1"], ["branches.1.0", "branches.1.1"], ["branches.2.0", "branches.2.1", "head"]],
    4: [["branches.0.0", "branches.0.1"], ["branches.1.0"], ["branches.1.1", "branches.2.0"], ["branches.2.1", "head"]],
}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [3, 4])
def test_side_by_side_on_virtual_devices(graph: Graph, devices: int) -> None:
    plan = side_by_side(graph, devices, 8)
    assert [list(stage.blocks) for stage in plan.stages] == PLANS[devices]
    verdict = verify_plan(plan, factory(TINY), example(TINY, torch.float32), "side_by_side")
    assert verdict.equal, verdict.difference
    assert len(set(verdict.losses)) == verdict.steps == 3


@pytest.mark.slow
def test_side_by_side_on_real_ranks(pool: Pool, graph: Graph) -> None:
    assert_one_device(pool, Recipe(), side_by_side(graph, 3, 8))


def test_the_page_shows_the_example() -> None:
    page = (EXAMPLE.parents[1] / "multimodal.md").read_text()
    assert f"```py\n{EXAMPLE.read_text()}```" in page
