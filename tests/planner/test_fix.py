"""Decisions that the user holds: kept by the plan, or refused with the numbers and what works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cluster import parse_cluster
from partita.errors import InputError, PlanError
from partita.planner import parse_fix, plan
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem

GPT = {"model_type": "gpt2", "vocab_size": 96, "n_positions": 32, "n_layer": 4}


def gpt(heads: int):
    return capture_config({**GPT, "n_head": heads, "n_embd": 4 * heads}, seq=32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", r'"tp" has no value; tp=1 is how'),
        ("schedule", r'"schedule" has no value; schedule=1f1b is how'),
        ("tpp", r'"tpp" is no decision. Did you mean'),
        ("tq=4", r'"tq=4" is no decision. Did you mean'),
        ("tp=0", r'"tp=0": tp is at least 1'),
        ("tp=-2", r'"tp=-2": tp is at least 1'),
        ("tp=1.5", r'"tp=1.5": tp is a whole number'),
        ("tp=nan", r'"tp=nan": tp is a whole number'),
        ("tp=99999999999999", r"tp is a whole number"),
        ("zero=4", r'"zero=4": zero is 0, 1, 2 or 3'),
        ("recompute=half", r'"recompute=half": recompute is none or full'),
        ("schedule=zb", r'"schedule=zb": schedule is 1f1b, gpipe or kfkb'),
        ("stage:2.pp=1", r"of one stage dp, tp, zero and recompute can be held"),
    ],
)
def test_what_is_no_decision_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_fix([text])


def test_a_decision_may_be_held_once():
    assert parse_fix(["tp=4", "recompute = full"]) == {"tp": 4, "recompute": "full"}
    with pytest.raises(InputError, match="tp is held twice, also as tp=4"):
        parse_fix(["tp=4", "tp=2"])


@pytest.mark.parametrize(
    ("heads", "tp", "remainder", "works", "near"),
    [
        (52, 8, 4, "1, 2, 4, 13, 26 and 52", "4 and 13"),
        (12, 8, 4, "1, 2, 3, 4, 6 and 12", "6 and 12"),
        (40, 3, 1, "1, 2, 4, 5, 8, 10, 20 and 40", "2 and 4"),
        (28, 8, 4, "1, 2, 4, 7, 14 and 28", "7 and 14"),
    ],
)
def test_c10_heads_that_tp_does_not_divide(heads, tp, remainder, works, near):
    graph = gpt(heads)
    with pytest.raises(PlanError) as caught:
        plan(Problem(graph, parse_cluster("8xa100-40gb"), 64, fix={"tp": tp}))
    text = str(caught.value)
    assert f'tp={tp} does not divide heads={heads} (block "transformer.h.0' in text
    assert f"{works} do. The remainder is {remainder}; nearest: {near}." in text


@pytest.mark.slow
def test_c10_the_planner_proposes_what_divides():
    for heads in (12, 28, 40, 52):
        found = plan(Problem(gpt(heads), parse_cluster("8xa100-40gb"), 64))
        assert all(heads % stage.tp == 0 for stage in found.stages)
    assert plan(Problem(gpt(52), parse_cluster("8xa100-40gb"), 64, fix={"tp": 4, "dp": 2})).stages[0].dp == 2


@pytest.mark.parametrize(
    ("fix", "batch", "message"),
    [
        (["dp=3"], 64, "dp=3 does not divide the global batch 64; 1, 2, 4, 8, 16, 32 and 64 do"),
        (["tp=4", "dp=4"], 64, "tp=4 · dp=4 needs 16 devices, the cluster has 8"),
        (["dp=2", "micro_batch=3"], 64, "does not divide the 32 samples of a replica"),
        (["pp=7"], 64, "pp=7: 7 stages need at least 7 blocks, the model has 6; 1 to 6 work"),
        (["micro_batch=4", "micro_batches=8", "dp=8"], 64, "does not divide"),
    ],
)
def test_what_can_t_be_held_is_refused(fix, batch, message):
    with pytest.raises(PlanError) as caught:
        plan(Problem(gpt(12), parse_cluster("8xa100-40gb"), batch, target="partita", fix=parse_fix(fix)))
    assert message in str(caught.value)


def test_what_the_target_can_t_run_is_refused():
    with pytest.raises(PlanError, match="zero=2: plans for Megatron keep the whole optimizer state"):
        plan(Problem(gpt(12), parse_cluster("8xa100-40gb"), 64, target="megatron", fix={"zero": 2}))


@pytest.mark.parametrize(
    "fix",
    ["tp=2", "pp=2", "dp=2", "pp=2 tp=2 dp=2", "zero=1 dp=4", "recompute=full", "micro_batch=2", "schedule=gpipe pp=3",
     "micro_batches=4", "zero=3"],
)  # fmt: skip
def test_what_is_held_is_kept(fix):
    held = parse_fix(fix.split())
    found = plan(Problem(gpt(12), parse_cluster("8xa100-40gb"), 48, fix=held))
    stage = found.stages[0]
    kept = {
        "tp": stage.tp, "pp": len(found.stages), "dp": stage.dp, "zero": stage.strategies[0].zero,
        "recompute": stage.strategies[0].recompute, "micro_batch": stage.samples // stage.dp,
        "micro_batches": stage.micro_batches, "schedule": found.schedule,
    }  # fmt: skip
    assert {name: kept[name] for name in held} == held
    assert bool(stage.strategies[1].cut_along("tensor")) == (stage.tp > 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"global_batch": 0}, "global batch 0"),
        ({"global_batch": -8}, "global batch -8"),
        ({"global_batch": 10**15}, "10,000,000"),
        ({"precision": "bf8"}, "no precision \"bf8\". Did you mean 'bf16'"),
        ({"optimizer": "adamm"}, "Did you mean 'adam'"),
        ({"target": "deepsped"}, "Did you mean 'deepspeed'"),
        ({"memory_bytes": 0}, "must be positive"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(given, message):
    with pytest.raises(InputError) as caught:
        Problem(gpt(4), parse_cluster("2xa100-40gb"), **({"global_batch": 8} | given))
    assert message in str(caught.value)


def test_bf16_on_a_v100_is_refused():
    with pytest.raises(PlanError, match="v100-16gb does not compute in bfloat16"):
        plan(Problem(gpt(4), parse_cluster("2xv100-16gb"), 8))


@pytest.mark.slow
def test_all_configurations_plan_and_lose_no_block():
    for path in sorted((Path(__file__).parent.parent / "data" / "configs").glob("*-tiny.json")):
        graph = capture_config(json.loads(path.read_text()), name=path.stem)
        found = plan(Problem(graph, parse_cluster("cpu", devices=4), 8, precision="fp32"))
        assert [name for stage in found.stages for name in stage.blocks] == [block.name for block in graph.blocks]
        assert not any("Unknown kinds" in reason for reason in found.reasons)
