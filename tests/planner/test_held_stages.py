"""Decisions that are held for single stages: they are kept, what isn't held is chosen as well as can be."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.errors import InputError, PlanError
from partita.plan import save_plan
from partita.planner import parse_fix, plan
from partita.planner.joint.engine import Engine
from partita.planner.joint.formula import fits, step_seconds
from partita.planner.joint.price import Pricing
from partita.problem import Problem
from tests.planner.joint.brute import answers

CONFIGS = Path(__file__).parents[1] / "data/configs"


def asked(made, target="partita", **fix):
    graph = made.chain([3e-3, 1e-3, 2e-3, 4e-3, 1e-3], [3000, 100, 4000, 500, 700], width=500, kept=90_000)
    texts = [f"{name.replace('__', ':').replace('_at_', '.')}={value}" for name, value in fix.items()]
    return made.problem(graph, made.machine(4, memory=2_000_000), batch=8, target=target, fix=parse_fix(texts))


@pytest.mark.parametrize(
    ("stage", "name", "value"),
    [
        pytest.param(0, "zero", 1, marks=pytest.mark.slow), pytest.param(1, "zero", 2, marks=pytest.mark.slow),
        pytest.param(1, "tp", 1, marks=pytest.mark.slow),
        pytest.param(0, "dp", 2, marks=pytest.mark.slow), (1, "recompute", "full"),
    ],
)  # fmt: skip
def test_a_held_stage_is_kept_and_the_rest_is_the_best_there_is(made, stage, name, value):
    problem = asked(made, pp=2, **{f"stage__{stage}_at_{name}": value})
    found = plan(problem)
    kept = found.stages[stage]
    if name in ("dp", "tp"):
        assert getattr(kept, name) == value
    else:
        assert {getattr(strategy, name) for strategy in kept.strategies} == {value}
    # Of all answers of the free problem those that keep it, priced by the formula.
    free = Pricing(asked(made, pp=2), alike(problem.graph))
    best = float("inf")
    for family in free.families:
        for count, schedule in product(free.micro_batches(family), ("1f1b", "gpipe")):
            for depth in (0, 1, 2) if schedule == "1f1b" else (0,):
                table = free.table(family, count, schedule, depth)
                for answer in answers(table):
                    shape = family.shapes[answer[stage].shape]
                    options = {family.options[m].recompute for m in answer[stage].options}
                    has = options if name == "recompute" else {getattr(shape, name)}
                    if has == {value} and fits(table, answer):
                        best = min(best, step_seconds(table, answer))
    assert found.predicted.step_seconds == pytest.approx(best, rel=1e-8)
    assert best >= Engine(free).search().best.seconds * (1 - 1e-9)


def test_the_stages_of_an_old_plan(made, tmp_path):
    file = tmp_path / "old.json"
    save_plan(plan(asked(made, pp=2, stage__0_at_recompute="full")), file)
    old = plan(asked(made, pp=2, stage__0_at_recompute="full"))
    problem = asked(made)
    held = made.problem(problem.graph, problem.cluster, batch=16, target="partita", fix=parse_fix([f"{file}:stages"]))
    found = plan(held)
    assert [(s.blocks, s.devices, s.dp, s.tp) for s in found.stages] == [
        (s.blocks, s.devices, s.dp, s.tp) for s in old.stages
    ]


@pytest.mark.parametrize(
    ("fix", "error", "said"),
    [
        (["stage:2.zero=1"], PlanError, "stage:2.zero=1: of how many stages? Hold pp too, at least pp=3"),
        (["pp=2", "stage:2.zero=1"], PlanError, "stage:2.zero=1: pp=2 has the stages 0 to 1"),
        (["stage:x.zero=1"], InputError, '"stage:x.zero=1": of one stage dp, tp, zero and recompute can be held'),
        (["stage:1.schedule=gpipe"], InputError, "written stage:2.zero=1"),
        (["stage:1.zero=4"], InputError, '"stage:1.zero=4": zero is 0, 1, 2 or 3'),
        (["stage:1.zero=1", "stage:01.zero=2"], InputError, "stage:1.zero is held twice, also as stage:1.zero=1"),
        (["nowhere.json:stages"], InputError, "nowhere.json"),
    ],
)
def test_what_cannot_be_held_of_a_stage(made, fix, error, said):
    problem = asked(made)
    with pytest.raises(error) as refused:
        plan(made.problem(problem.graph, problem.cluster, batch=8, target="partita", fix=parse_fix(fix)))
    assert said in str(refused.value)


@pytest.mark.parametrize("fix", [["stage:0.tp=2", "stage:1.tp=1"], ["stage:0.dp=1", "stage:1.dp=2"]])
@pytest.mark.parametrize("tied", [True, False])
def test_stages_that_share_a_parameter_have_one_tp(fix, tied):
    graph = load_model(str(CONFIGS / ("gpt-neox-tiny.json" if tied else "gpt2-tiny.json")), 16, "bfloat16")
    held = ["pp=2", "micro_batches=4", *fix]
    problem = Problem(graph, parse_cluster("1x4xa100-80gb"), 8, target="partita", fix=parse_fix(held))
    if not tied:
        assert [(stage.dp, stage.tp) for stage in plan(problem).stages] == [(1, 2), (2, 1)]
        return
    with pytest.raises(PlanError) as refused:
        plan(problem)
    ((name, (first, last)),) = graph.shared_parameters.items()
    assert f"keeps all of {', '.join(held)} (" in str(refused.value)
    assert f'have one tp, and blocks {first} and {last} share "{name}"' in str(refused.value)


def test_blocks_that_two_held_stages_leave_out(made):
    """No stage has the third block: a contradiction, whatever the memory."""
    fix = {"pp": 2, "stage:0.blocks": "b0 … b1", "stage:1.blocks": "b3 … b4"}
    problem = made.problem(asked(made).graph, made.machine(4), batch=8, target="partita", fix=fix)
    with pytest.raises(PlanError, match=r"no plan for 4 devices.* keeps all of pp=2, stage:0.blocks=b0 … b1"):
        plan(problem)


def test_where_all_stages_must_be_alike_one_of_them_is_not_held(made):
    with pytest.raises(PlanError, match="for target deepspeed all stages are alike in zero; hold zero=1, or plan for"):
        plan(asked(made, "deepspeed", pp=2, stage__1_at_zero=1))
