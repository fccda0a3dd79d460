"""Models like DLRM and Uno: their graphs against the modules, their branches, what they learn, their ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from partita.adapters.verify.planned import verify_plan
from partita.errors import ModelError
from partita.graph import Graph
from partita.plugins.capture_torch import capture_module
from partita.recipes.branched import BranchedRecipe
from partita.recipes.dlrm.clicks import Clicks
from partita.recipes.dlrm.hooks import Dlrm
from partita.recipes.dlrm.model import Interactions
from partita.recipes.dlrm.sizes import SIZES as DLRMS
from partita.recipes.uno.hooks import Uno
from partita.recipes.uno.responses import Responses
from partita.recipes.uno.sizes import SIZES as UNOS
from tests.ranks.pool import Pool
from tests.recipes.branched import assert_joined_branches, assert_one_device, side_by_side
from tests.recipes.graphs import difference, randomised

RECIPES: dict[str, BranchedRecipe] = {"dlrm": Dlrm(), "uno": Uno()}
# Branches, layers of each, layers on top.
SHAPES = {"dlrm-tiny": (4, 2, 2), "dlrm-like": (7, 4, 4), "uno-tiny": (7, 2, 2), "uno-like": (7, 4, 4)}
W = 4096
LAYER = W * W + W
# Layers after the first of 7 branches and of the top, and the head.
REST = (7 * 3 + 3) * LAYER + W + 1
PARAMETERS = {
    "dlrm-like": REST + 13 * W + 6 * (100_000 * 128 + 128 * W) + (W + 7 * 7) * W + 8 * W,
    "uno-like": REST + (942 + 2 * (1 + 5270 + 2048)) * W + 7 * W * W + 8 * W,
}


def recipe_of(name: str) -> BranchedRecipe:
    return RECIPES[name.split("-")[0]]


def tiny(name: str) -> Graph:
    build, example = recipe_of(name).parts(name, torch.float64)
    return capture_module(build, example(2), name=name, dtype=torch.float64).graph


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return {name: tiny(name) for name in ("dlrm-tiny", "uno-tiny")}


@pytest.mark.parametrize(
    ("name", "parameters"), [pytest.param("dlrm-tiny", 25, marks=pytest.mark.slow), ("uno-tiny", 34)]
)
def test_the_graph_computes_what_the_module_does(graphs: dict[str, Graph], name: str, parameters: int) -> None:
    build, _ = recipe_of(name).parts(name, torch.float64)
    batch = recipe_of(name).drawn(name, torch.float64, 0)(0, 6)
    model = randomised(build())
    errors = difference(capture_module(build, batch, name=name, dtype=torch.float64).graph, model, batch)
    # And the loss.
    assert len(errors) == parameters + 1
    assert {parameter: error for parameter, error in errors.items() if not error <= 1e-12} == {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name.endswith("-tiny") else pytest.mark.slow) for name in SHAPES]
)
def test_branches_are_independent_and_joined_by_the_top(graphs: dict[str, Graph], name: str) -> None:
    branches, layers, top = SHAPES[name]
    graph = graphs.get(name) or recipe_of(name).partita_capture(name, 1, None, "bfloat16")
    assert graph is not None
    assert_joined_branches(graph, branches, layers, [*(f"top.{layer}" for layer in range(top)), "head"])
    assert graph.seq is None
    if name in PARAMETERS:
        assert graph.parameter_count == PARAMETERS[name]


def test_interactions_are_products_of_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    found = Interactions()(*vectors)
    assert found.shape == (2, 4 + 9)
    assert torch.equal(found[:, :4], vectors[0])
    for one in range(3):
        for other in range(3):
            product = (vectors[one] * vectors[other]).sum(-1) / 2
            assert torch.allclose(found[:, 4 + 3 * one + other], product, rtol=1e-12)


def test_samples_are_drawn_by_seed_and_step() -> None:
    for name, recipe in (("dlrm-tiny", RECIPES["dlrm"]), ("uno-tiny", RECIPES["uno"])):
        batch, again = (recipe.drawn(name, torch.float32, 5)(7, 4) for _ in range(2))
        others = [recipe.drawn(name, torch.float32, seed)(step, 4) for seed, step in ((5, 8), (6, 7))]
        _, example = recipe.parts(name, torch.float32)
        shapes = {key: (value.shape, value.dtype) for key, value in example(4).items()}
        assert {key: (value.shape, value.dtype) for key, value in batch.items()} == shapes
        assert all(torch.equal(batch[key], again[key]) for key in batch)
        first = next(iter(batch))
        assert all(not torch.equal(batch[first], other[first]) for other in others)


def without(part: Tensor, total: Tensor, clicks: Tensor) -> float:
    """The least loss of who knows the sum of all but one part: he takes any sample's part for as likely."""
    chance = ((total - part).unsqueeze(1) + part > 0).double().mean(1)
    return float(binary_cross_entropy(chance, clicks.double()))


def trained(name: str, steps: int) -> torch.nn.Module:
    recipe = recipe_of(name)
    build, _ = recipe.parts(name, torch.float32)
    drawn = recipe.drawn(name, torch.float32, 0)
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = model(**drawn(step, 32)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_clicks_are_learnt_from_all_branches() -> None:
    rule = Clicks(DLRMS["dlrm-tiny"], torch.float32, 0)
    batch = rule.batch(1000, 512)
    parts = [batch["numbers"] @ rule.of_numbers, *rule.of_rows.t().gather(0, batch["features"]).t()]
    total = torch.stack(parts).sum(0)
    assert torch.equal(batch["clicks"], (total > 0).float())
    model = trained("dlrm-tiny", 80)
    with torch.no_grad():
        loss = float(model(**batch).loss)
    assert loss < 0.9 * min(without(part, total, batch["clicks"]) for part in parts)


def test_growth_is_learnt_from_all_branches() -> None:
    """Each of seven features has a seventh of the variance, which who doesn't know it can't explain."""
    batch = Responses(UNOS["uno-tiny"], torch.float32, 0).batch(1000, 512)
    assert float(batch["growth"].var()) == pytest.approx(1, abs=0.15)
    strange = Responses(UNOS["uno-tiny"], torch.float32, 0).batch(1001, 512)
    model = trained("uno-tiny", 60)
    with torch.no_grad():
        assert float(model(**batch).loss) < 0.5 / 7
        for feature in UNOS["uno-tiny"].inputs:
            assert float(model(**batch | {feature: strange[feature]}).loss) > 1 / 7, feature


def test_sequence_lengths_and_unknown_sizes_are_errors() -> None:
    with pytest.raises(ModelError, match=r"uno-tiny: its name fixes the shapes .* leave out --seq 16"):
        RECIPES["uno"].partita_capture("uno-tiny", 1, 16, "float32")
    with pytest.raises(ModelError, match=r'no model like DLRM "dlrm-liek". Did you mean \'dlrm-like'):
        RECIPES["dlrm"].config("dlrm-liek")


@pytest.mark.parametrize("name", ["dlrm-tiny", pytest.param("uno-tiny", marks=pytest.mark.slow)])
def test_side_by_side_on_virtual_devices(graphs: dict[str, Graph], name: str) -> None:
    plan = side_by_side(graphs[name], 4, 8)
    verdict = verify_plan(plan, *recipe_of(name).parts(name, torch.float32), "side_by_side")
    assert verdict.equal, verdict.difference
    assert len(set(verdict.losses)) == verdict.steps == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlrm-tiny", "uno-tiny"])
def test_side_by_side_on_real_ranks(pool: Pool, graphs: dict[str, Graph], name: str) -> None:
    assert_one_device(pool, recipe_of(name), side_by_side(graphs[name], 4, 8))
