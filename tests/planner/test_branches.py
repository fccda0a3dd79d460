"""Models with branches: the planner's stages in the order that goes by their graph."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from math import inf
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from partita.branching import beside, in_graph_order
from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.errors import Infeasible, PlanError
from partita.graph import Graph
from partita.graph.file import save_graph
from partita.plan import Plan
from partita.planner.branches.proving import Prover
from partita.planner.branches.search import GraphSearch, branched, listed_by_branch
from partita.planner.joint.engine import Engine
from partita.planner.joint.plan import solve
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from partita.ranking import planned, ranked
from partita.reach import beyond
from partita.simulated import captured, foretold
from tests.branches import Branches
from tests.spacetime.unlike import Case, Part
from tests.spacetime.unlike import plan as by_hand

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
WIDTH, TOKENS, GIB = 1024, 256, 2**30


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


@cache
def graph() -> Graph:
    example = {"x": torch.zeros(1, TOKENS, WIDTH), "y": torch.zeros(1, TOKENS, 3 * WIDTH)}
    return capture_module(
        lambda: Branches(Layer, 4, nn.Linear(3 * WIDTH, 3 * WIDTH)), example, name="towers", dtype=torch.bfloat16
    ).graph


def problem(target: str, **fix: int | str) -> Problem:
    return Problem(graph(), parse_cluster("1x3xa100-80gb"), 48, target=target, fix={"pp": 3, **fix})


def chain() -> Plan:
    return ranked(solve(problem("partita", schedule="1f1b")))


def test_the_same_stages_by_their_graph_hold_less_in_the_same_time():
    found = in_graph_order(problem("partita"), chain())
    assert found is not None
    plan, said = found
    assert (plan.schedule, plan.order.arguments) == ("kfkb", {"k": 1, "depth": 0})
    assert [stage.in_flight for stage in plan.predicted.breakdown.stages] == [2, 2, 1]
    assert "they hold 2, 2 and 1 micro-batches" in said
    assert "as a chain (1f1b) 3, 2 and 1" in said


def test_stages_that_are_cut_for_branches_take_less_than_the_best_chain():
    before, found = chain(), ranked(solve(problem("partita")))
    assert found.search.engine == "branches"
    assert found.schedule == "kfkb"
    # Two of three stages lie on the longest path: the pipeline fills in two turns.
    stages = found.predicted.breakdown.stages
    turn = max(stage.forward_seconds + stage.backward_seconds for stage in stages)
    assert found.search.bound_seconds <= found.predicted.step_seconds < before.predicted.step_seconds
    assert found.predicted.step_seconds - stages[0].sync_seconds < (found.order.micro_batches + 2) * turn
    assert re.search(r"The best chain of stages \(.*1f1b.*\) takes .* 1\.\d\d times as long", found.reasons[-1])
    assert "whose longest path has 2 of 3" in found.reasons[-2]


def by_turns() -> Problem:
    """The same towers, whose layers of one depth are neighbours in the model's list."""
    asked = problem("partita")
    inside = asked.graph
    layers = [f"towers.{tower}.{layer}" for layer in range(4) for tower in range(3)]
    place = {name: at for at, name in enumerate([*layers, "head"])}
    blocks = tuple(sorted(inside.blocks, key=lambda block: place[block.name]))
    ops = tuple(sorted(inside.ops, key=lambda op: place[op.block]))
    return replace(asked, graph=replace(inside, blocks=blocks, ops=ops))


@pytest.mark.slow
def test_blocks_that_are_listed_turn_by_turn_are_planned_branch_by_branch():
    asked, turned = problem("partita"), by_turns()
    inside = asked.graph
    assert [block.name for block in listed_by_branch(turned.graph).blocks] == [block.name for block in inside.blocks]
    assert listed_by_branch(inside) is inside
    found, expected = ranked(solve(turned)), ranked(solve(asked))
    assert found.predicted.step_seconds == pytest.approx(expected.predicted.step_seconds, rel=1e-3)
    assert found.problem == turned.digest


def test_out_of_time_the_chain_is_there():
    """Also where blocks would have to be listed anew."""
    for asked in (problem("partita"), by_turns()):
        found = solve(asked)
        late = replace(found, engine=Engine(found.engine.pricing, 0.0))
        assert [one.best.found.stages for one in branched(late, inf, 3)] == [found.best.found.stages]


def test_what_was_found_before_an_interrupt_is_there():
    class Interrupted(GraphSearch):
        def _limits(self, *asked):
            yield next(super()._limits(*asked))
            raise KeyboardInterrupt

    found = solve(problem("partita"))
    search = Interrupted(found.engine, (), inf)
    (answer,) = search.best(inf, 3)
    ((seconds, _, _, places),) = search.found
    assert (answer.best.seconds, answer.searched.optimal) == (pytest.approx(seconds), False)
    assert [(one.start, one.stop) for one in answer.best.found.stages] == [place[:2] for place in places]


def test_an_interrupt_of_the_proof_leaves_what_was_found(monkeypatch):
    class Interrupted(Prover):
        def bound(self, below, judge):
            super().bound(below, judge)
            raise KeyboardInterrupt

    found = solve(problem("partita"))
    expected = branched(found, inf, 3, work=0)
    monkeypatch.setattr("partita.planner.branches.search.Prover", Interrupted)
    answers = branched(found, inf, 3)
    assert [one.best.found for one in answers] == [one.best.found for one in expected]
    assert answers[0].searched.bound_seconds == expected[0].searched.bound_seconds > 0


@pytest.mark.slow
def test_after_an_interrupt_nothing_new_is_searched_for():
    found, before = solve(problem("partita")), chain()
    stopped = replace(found, searched=replace(found.searched, optimal=False))
    assert beside(problem("partita"), found, found.best, before).plan.search.engine == "branches"
    formed = beside(problem("partita"), stopped, found.best, before).plan
    assert (formed.schedule, formed.stages) == ("kfkb", before.stages)


def test_where_no_chain_fits_branches_side_by_side_may():
    """With three micro-batches of 16 samples the first tower holds two beside the others, three as a chain's stage."""
    tight = replace(problem("partita", recompute="none", micro_batches=3), memory_bytes=int(2.4 * GIB))
    with pytest.raises(Infeasible, match=r"the least is 2\.42 GiB a device"):
        planned(replace(tight, fix={**tight.fix, "schedule": "1f1b"}))
    found = planned(tight)
    assert found.search.engine == "branches"
    assert max(found.predicted.peak_bytes.values()) <= 2.4 * GIB
    assert [stage.in_flight for stage in found.predicted.breakdown.stages] == [2, 2, 1]
    assert any(said.startswith("As a chain of stages nothing fits 2.40 GiB a device") for said in found.reasons)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [2.6, 3.0])
def test_kfkb_can_be_held(memory):
    asked = replace(problem("partita", schedule="kfkb"), memory_bytes=int(memory * GIB))
    plan = planned(asked)
    assert plan.schedule == "kfkb"
    assert "Held by you: pp=3, schedule=kfkb." in plan.reasons
    assert planned(replace(asked, fix={"pp": 1, "schedule": "kfkb"})).schedule == "kfkb"


def test_kfkb_can_be_held_where_stages_divide_a_copys_samples():
    """Which the model has been captured with one of: its file is captured again, with two."""
    model = str(CONFIGS / "gpt2-tiny.json")

    def made(samples: int) -> Graph:
        return load_model(model, 8, "float32", samples)

    cluster = parse_cluster("1x4xa100-80gb")
    divided = by_hand(made, Case((Part(flow="batch"), Part(flow="batch"))), "fp32")
    held = Problem(made(1), cluster, 8, precision="fp32", target="partita", fix={"schedule": "kfkb"}, model=model)
    found = solve(held)
    formed = beside(held, found, found.best, foretold(made(2), divided, cluster)).plan
    assert (formed.sample_parts, formed.schedule, formed.stages) == (2, "kfkb", divided.stages)
    assert formed.predicted.step_seconds > 0


def test_a_file_s_model_is_captured_again_with_more_samples(tmp_path):
    """By what the user named; the graph's name is the file's alone, and a saved graph has the samples that it has."""
    model, saved = str(CONFIGS / "gpt2-tiny.json"), tmp_path / "saved.json"
    graph = load_model(model, 8, "float32")
    save_graph(graph, saved)
    plan = by_hand(partial(load_model, model, 8, "float32"), Case((Part(flow="batch"),)), "fp32")
    asked = Problem(graph, parse_cluster("1x2xa100-80gb"), 8, precision="fp32", target="partita")
    found = captured(replace(asked, model=model), plan)
    assert (graph.samples, plan.sample_parts, found.samples) == (1, 2, 2)
    assert [block.parameters for block in found.blocks] == [block.parameters for block in graph.blocks]
    assert [captured(replace(asked, model=name), plan) for name in (None, str(saved))] == [None, None]


def test_kfkb_is_refused_where_stages_are_a_chain():
    with pytest.raises(PlanError, match=r"schedule=kfkb with target megatron: .* targets deepspeed and partita have"):
        planned(problem("megatron", schedule="kfkb"))


def test_a_target_that_knows_chains_alone_keeps_1f1b():
    assert ranked(solve(problem("megatron"))).schedule == "1f1b"


def test_stages_for_deepspeed_are_a_graph_of_alike_ones_that_its_engine_runs():
    found = planned(problem("deepspeed"))
    assert found.schedule == "kfkb"
    assert beyond(found) == []
    assert any(said.startswith("The stages form a graph, whose longest path has 2 of 3") for said in found.reasons)


def test_a_schedule_that_is_held_stays():
    assert chain().schedule == "1f1b"
    assert beside(problem("partita", schedule="1f1b"), None, None, chain()) is None
