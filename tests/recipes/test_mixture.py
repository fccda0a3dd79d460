"""The mixture of experts: routing against loops over tokens, its graph against the module, its classes, its ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from partita.cli.model import load_model
from partita.cli.options import problem
from partita.errors import ModelError
from partita.graph import Graph
from partita.graph.cuts import block_cuts, unknown_kinds
from partita.hooks import planned
from partita.plugins.capture_torch import capture_module
from partita.recipes.compare import TOLERANCE
from partita.recipes.mixture.experts import Experts, Mixture
from partita.recipes.mixture.hooks import Mixture as Recipe
from partita.recipes.mixture.model import example, factory
from partita.recipes.mixture.sizes import SIZES, Size, config
from partita.recipes.one_device import losses_on_one_device
from partita.recipes.recipe import Workload
from tests.ranks.pool import Pool
from tests.recipes.graphs import difference, randomised
from tests.recipes.ranks import losses_by_plan

TINY = "mixture-tiny"
SEQ = 16


def values(samples: int, seq: int, width: int) -> Tensor:
    return torch.randn(samples, seq, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def token_by_token(module: Mixture, value: Tensor) -> tuple[Tensor, list[int]]:
    """GShard's routing as loops: each sample's tokens in order, all first choices before all second ones. Also how
    many tokens each expert turned away.
    """
    size, answer = module.size, torch.zeros_like(value)
    turned_away = [0] * size.experts
    for sample, tokens in enumerate(value):
        room = [size.capacity(len(tokens))] * size.experts
        probabilities = torch.softmax(tokens @ module.router.gate.weight.t(), -1)
        ranked = probabilities.argsort(-1, descending=True)[:, : size.chosen]
        for rank in range(size.chosen):
            for place, token in enumerate(tokens):
                expert = int(ranked[place, rank])
                if room[expert] == 0:
                    turned_away[expert] += 1
                    continue
                room[expert] -= 1
                weight = probabilities[place, expert] / probabilities[place, ranked[place]].sum()
                hidden = torch.relu(token @ module.experts.widen[expert])
                answer[sample, place] += weight * (hidden @ module.experts.narrow[expert])
    return answer, turned_away


@pytest.mark.parametrize("chosen", [1, 2, 3])
@pytest.mark.parametrize("slack", [0.25, 1.0, 4.0])
def test_routing_is_that_of_loops_over_tokens(chosen: int, slack: float) -> None:
    size = replace(SIZES[TINY], width=6, expert_width=10, chosen=chosen, slack=slack)
    module, value = randomised(Mixture(size)), values(3, 13, size.width)
    wanted, turned_away = token_by_token(module, value)
    found = module(value)
    assert (found - wanted).abs().max() <= 1e-14 * wanted.abs().max()
    # With room for all nobody is turned away; with a quarter of the room somebody is.
    assert (sum(turned_away) > 0) == (slack < 4.0)


@pytest.mark.parametrize(
    ("seq", "chosen", "slack", "capacity"), [(16, 2, 1.25, 10), (16, 1, 1.25, 5), (16, 1, 1.0, 4), (3, 2, 4.0, 3)]
)
def test_capacity(seq: int, chosen: int, slack: float, capacity: int) -> None:
    assert replace(SIZES[TINY], chosen=chosen, slack=slack).capacity(seq) == capacity


def test_a_sample_does_not_depend_on_others() -> None:
    module = randomised(Mixture(SIZES[TINY]))
    value = values(3, 16, 32)
    together = module(value)
    for sample in range(3):
        assert torch.allclose(together[sample], module(value[sample : sample + 1])[0], rtol=1e-12, atol=1e-14)


def test_parts_of_the_experts_add_up() -> None:
    """What expert parallelism rests on: devices that hold some of the experts each give partial sums of the answer."""
    whole, value = randomised(Mixture(SIZES[TINY])), values(2, 16, 32)
    total = torch.zeros_like(value)
    for own in ([0], [1, 2], [3]):
        part = Mixture(SIZES[TINY]).double()
        part.load_state_dict(
            {name: tensor for name, tensor in whole.state_dict().items() if "router" in name}, strict=False
        )
        part.experts = Experts(replace(SIZES[TINY], experts=len(own))).double()
        for name, parameter in part.experts.named_parameters():
            parameter.data = getattr(whole.experts, name).data[own]
        total += part(value)
    assert (total - whole(value)).abs().max() <= 1e-14


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_module(factory(TINY), example(SEQ)(2), name=TINY, dtype=torch.float64).graph


def batch(samples: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 256, (samples, SEQ), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, 5:] = -100
    return {"input_ids": ids, "labels": labels}


def test_the_graph_computes_what_the_module_does(graph: Graph) -> None:
    errors = difference(graph, randomised(factory(TINY)()), batch(2))
    assert len(errors) == 4 * 15 + 6
    assert {name: error for name, error in errors.items() if not error <= 1e-12} == {}


def test_blocks_loss_and_parameters(graph: Graph) -> None:
    assert [block.name for block in graph.blocks] == ["embedding", *(f"layers.{index}" for index in range(4)), "head"]
    assert (graph.loss.weighting, graph.samples, graph.seq) == ("tokens", 2, SEQ)
    parameters = dict(factory(TINY)().named_parameters())
    assert {t.name: (t.shape, t.gradient) for t in graph.tensors if t.role == "parameter"} == {
        name: (tuple(parameter.shape), parameter.requires_grad) for name, parameter in parameters.items()
    }
    # Of each layer: attention, two norms, router, experts and their numbers; tables, norm and words around them.
    layer = 4 * (32 * 32 + 32) + 4 * 32 + 4 * 32 + 2 * 4 * 32 * 64 + 4
    assert graph.parameter_count == 4 * layer + 256 * 32 + 64 * 32 + 2 * 32 + 32 * 256


def test_experts_and_heads_can_be_cut(graph: Graph) -> None:
    for index in range(4):
        block = f"layers.{index}"
        assert unknown_kinds(graph, block) == {}
        heads, experts = block_cuts(graph, block)
        assert (heads.name, heads.size, experts.name, experts.size) == ("heads", 4, "experts", 4)
        own = {name for name in experts.dims if graph.tensor[name].role == "parameter"}
        assert own == {f"{block}.mixture.experts.{name}" for name in ("number", "widen", "narrow")}
        assert all(experts.dims[name] == (0, 1) for name in own)
        # One sum, of the answers, completes the layer; what enters whole: tokens, and each choice's weights.
        assert [graph.tensor[name].shape for name in experts.reductions] == [(2, SEQ, 32)]
        shapes = sorted(graph.tensor[name].shape for name in experts.entries)
        assert shapes == [(2, SEQ, 1, 1), (2, SEQ, 1, 1), (2, SEQ, 32)]


@pytest.mark.slow
def test_names_and_sequences() -> None:
    assert load_model(TINY, None, "float32").seq == 64
    assert load_model(TINY, 8, "bfloat16").tensor["layers.0.mixture.experts.widen"].dtype == "bfloat16"
    with pytest.raises(ModelError, match="seq=65: mixture-tiny has 64 learned positions; any seq from 1 to 64 works"):
        load_model(TINY, 65, "float32")
    with pytest.raises(ModelError, match=r'no mixture of experts "mixture-huge". Did you mean \'mixture-tiny\''):
        config("mixture-huge")
    assert Size(**config(TINY)) == SIZES[TINY]


BATCH, STEPS, RATE, SEED = 8, 3, 1e-3, 0
PLANS = {
    "dp2": (["dp=2"], 2),
    "tp2": (["tp=2"], 2),
    "pp2": (["pp=2", "micro_batches=2"], 2),
    "pp2 tp2": (["pp=2", "tp=2", "micro_batches=2"], 4),
}


def workload() -> Workload:
    return Recipe().workload(TINY, seq=SEQ, dtype=torch.float32, seed=SEED, files={"text": None})


@cache
def one_device() -> list[float]:
    return losses_on_one_device(workload(), steps=STEPS, global_batch=BATCH, learning_rate=RATE, seed=SEED)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_equal_to_one_device(pool: Pool, name: str) -> None:
    fix, devices = PLANS[name]
    stated = problem(TINY, "cpu", devices, BATCH, SEQ, "fp32", "adam", None, "partita", fix)
    plan = planned(stated)
    assert "tp" not in name or {"heads", "experts"} <= {
        cut.dim for stage in plan.stages for strategy in stage.strategies for cut in strategy.cuts
    }
    everyones = pool.run(losses_by_plan, devices, plan, workload, STEPS, BATCH, RATE, SEED, timeout=180)
    assert all(losses == everyones[0] for losses in everyones)
    differences = [abs(ours - theirs) for ours, theirs in zip(everyones[0], one_device(), strict=True)]
    assert max(differences) <= TOLERANCE
