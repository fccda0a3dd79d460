"""Memory and time of the user's own arrangement, through the same cost model as the planner's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partita.cli.main import main
from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.plan import Plan
from partita.planner import parse_fix
from partita.planner import plan as best
from partita.problem import Problem
from partita.simulate.predict import predicted
from tests.check.command import Check, paths, problems

GIB = 2**30
MODEL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 6, "n_head": 4, "vocab_size": 96, "n_positions": 32,
         "tie_word_embeddings": False}  # fmt: skip


def deepspeed(plan: Plan) -> dict[str, Any]:
    """The plan's choices as a DeepSpeed configuration."""
    stage = plan.stages[0]
    return {
        "train_batch_size": plan.global_batch, "train_micro_batch_size_per_gpu": stage.samples // stage.dp,
        "gradient_accumulation_steps": stage.micro_batches, "bf16": {"enabled": plan.precision == "bf16"},
        "zero_optimization": {"stage": stage.strategies[0].zero},
    }  # fmt: skip


@pytest.mark.parametrize(
    "fix",
    [
        pytest.param([], marks=pytest.mark.slow), pytest.param(["pp=2"], marks=pytest.mark.slow), ["pp=2", "tp=2"],
        ["dp=4", "zero=2", "micro_batch=1"],
        pytest.param(["pp=4", "micro_batches=8"], marks=pytest.mark.slow),
    ],
    ids=",".join,
)  # fmt: skip
def test_a_plan_costs_what_check_says(check: Check, fix: list[str]) -> None:
    """The best arrangement under the formula, written down by hand: the seconds and the bytes of its simulation."""
    question = ["gpt3-125m", "--cluster", "1x4xa100-80gb"]
    held = parse_fix([*fix, "recompute=none", "schedule=1f1b"])
    graph, cluster = load_model("gpt3-125m", None, "bfloat16"), parse_cluster("1x4xa100-80gb")
    plan = predicted(graph, best(Problem(graph, cluster, 64, fix=held)), cluster)
    arguments = ["--model", *question, "--pp", str(len(plan.stages)), "--tp", str(plan.stages[0].tp)]
    found = check({"ds.json": deepspeed(plan)}, *arguments, status=0)["predicted"]
    assert found["step_seconds"] == pytest.approx(plan.predicted.step_seconds, rel=1e-8)
    assert [stage["total"] for stage in found["stages"]] == [
        stage.memory.total for stage in plan.predicted.breakdown.stages
    ]
    assert found["memory_limit_bytes"] == 80 * GIB


def test_the_gain_of_the_best_plan(check: Check) -> None:
    question = ["gpt3-125m", "--cluster", "1x4xa100-80gb"]
    assert main(["plan", *question, "--global-batch", "64", "--json"]) == 0
    best = json.loads(check.capsys.readouterr().out)["predicted"]["step_seconds"]
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    found = check({"ds.json": config}, "--model", *question, status=0)["predicted"]
    assert found["best"]["step_seconds"] == best
    assert found["best"]["speedup"] == found["step_seconds"] / best
    assert found["best"]["speedup"] > 1


def test_what_does_not_fit_names_changes_that_do(check: Check) -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8, "bf16": {"enabled": True}}
    question = ["--model", "gpt3-6.7b", "--cluster", "1x8xa100-80gb"]
    found = check({"ds.json": config}, *question, status=1)
    (finding,) = problems(found)
    assert finding["path"] == "train_micro_batch_size_per_gpu"
    memory = found["predicted"]["stages"][0]
    assert f"{memory['total'] / GIB:.2f} GiB a device, and a100-80gb has 80.00 GiB" in finding["message"]
    for item in ("optimizer", "parameters", "activations"):
        assert f"{item} {memory[item] / GIB:.2f} GiB" in finding["message"]
    first = finding["works"][0]
    assert first.startswith("zero_optimization.stage 1: ")
    mended = check({"ds.json": {**config, "zero_optimization": {"stage": 1}}}, *question, status=0)
    assert first == f"zero_optimization.stage 1: {mended['predicted']['stages'][0]['total'] / GIB:.2f} GiB"


def test_state_of_the_stages_is_the_models(check: Check) -> None:
    """bf16 with Adam: 16 bytes a parameter, each once, whichever layers the arguments give to which stage."""
    check.write("model.json", MODEL)
    width, vocabulary, positions, layers = 64, 96, 32, 6
    parameters = layers * (12 * width**2 + 13 * width) + 2 * vocabulary * width + positions * width + 2 * width
    text = (
        "--num-layers 6 --pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers {} "
        "--decoder-last-pipeline-num-layers {} --micro-batch-size 1 --global-batch-size 4 --bf16\n"
    )
    for first, middle, last in ((2, 2, 2), (1, 4, 1), (1, 2, 3)):
        arguments = ["--model", "model.json", "--cluster", "3xa100-80gb"]
        found = check({"args.txt": text.format(first, last)}, *arguments, status=0)
        assert found["resolved"]["layers_per_stage"] == [first, middle, last]
        stages = found["predicted"]["stages"]
        state = [sum(stage[item] for item in ("parameters", "gradients", "optimizer")) for stage in stages]
        assert sum(state) == 16 * parameters
        assert state[1] == 16 * middle * (12 * width**2 + 13 * width)


def test_recomputation_is_read_from_training_arguments(check: Check) -> None:
    config = {"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True}}
    trainer = {"output_dir": "out", "per_device_train_batch_size": 8, "bf16": True, "deepspeed": "ds.json"}
    question = ["--model", "gpt3-125m", "--cluster", "1x4xa100-80gb"]
    held = {}
    for again in (False, True):
        found = check(
            {"ds.json": config, "args.json": {**trainer, "gradient_checkpointing": again}}, *question, status=0
        )
        assert found["resolved"]["recompute"] is again
        assert found["predicted"]["assumed"] == []
        held[again] = found["predicted"]["stages"][0]["activations"]
    assert held[True] < held[False] / 10


def test_offloaded_states_are_not_on_the_device(check: Check) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}  # fmt: skip
    found = check({"ds.json": config}, "--model", "gpt3-125m", "--cluster", "1x4xa100-80gb", status=0)
    assert found["predicted"]["stages"][0]["optimizer"] == 0
    assert found["predicted"]["step_seconds"] is None
    assert found["not_checked"] == ["time: transfers of offloaded states are not in the cost model"]


def test_a_precision_that_the_device_lacks(check: Check) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    found = check({"ds.json": config}, "--model", "gpt3-125m", "--cluster", "8xv100-16gb", status=1)
    assert paths(found, "problem") == ["bf16.enabled"]
    assert "fp16" in problems(found)[0]["message"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("--context-parallel-size 2 --micro-batch-size 1", "context parallelism"),
        ("--num-experts 4 --micro-batch-size 1", "experts"),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --micro-batch-size 1",
            "interleaved",
        ),
    ],
)
def test_what_the_cost_model_does_not_know_is_said(check: Check, text: str, reason: str) -> None:
    question = ["--model", "gpt3-125m", "--cluster", "1x8xa100-80gb"]
    found = check({"args.txt": f"{text} --bf16 --global-batch-size 8\n"}, *question, status=0)
    assert found["predicted"] is None
    (sentence,) = found["not_checked"]
    assert reason in sentence


def test_the_text_for_people(check: Check) -> None:
    check.write(
        "ds.json", {"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    )
    assert main(["check", "ds.json", "--devices", "4"]) == 1
    out = check.capsys.readouterr().out
    assert out.startswith("ds.json: DeepSpeed configuration\n4 devices: dp 4, tp 1, pp 1;")
    assert "problem: ds.json:2: train_batch_size\n" in out
    assert "  works: train_batch_size: 8\n" in out
    assert "\n1 problem\n" in out


def test_the_text_with_a_prediction(check: Check) -> None:
    check.write("ds.json", {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}})
    assert main(["check", "ds.json", "--model", "gpt3-125m", "--cluster", "1x4xa100-80gb"]) == 0
    out = check.capsys.readouterr().out
    assert "no problem found" in out
    assert "heaviest device: " in out
    assert "the best plan: " in out
    assert " times as fast" in out


@pytest.mark.slow
def test_each_stage_is_held_against_its_own_devices(check: Check) -> None:
    """What fits two devices of 80 GB and no two of 16 GB fits one of each: the stages are cut so, either way round."""
    text = "--pipeline-model-parallel-size 2 --fp16 --micro-batch-size {} --global-batch-size {}\n"
    question = ("--model", "gpt3-350m", "--devices", "2", "--seq", "1024", "--cluster")
    limits = {"a100-80gb": 80 * GIB, "v100-16gb": 16 * GIB}

    def asked(micro: int, first: str, second: str) -> dict[str, Any]:
        return check({"args.txt": text.format(micro, 8 * micro)}, *question, f"1x{first}+1x{second}")

    (finding,) = problems(asked(14, "v100-16gb", "v100-16gb"))
    assert "and v100-16gb has 16.00 GiB" in finding["message"]
    for names in (("a100-80gb", "v100-16gb"), ("v100-16gb", "a100-80gb"), ("a100-80gb", "a100-80gb")):
        found = asked(14, *names)
        assert problems(found) == []
        stages = found["predicted"]["stages"]
        assert all(stage["total"] <= limits[name] for stage, name in zip(stages, names, strict=True))
        assert max(stage["total"] for stage in stages) > 16 * GIB
        assert found["predicted"]["memory_limit_bytes"] == min(limits[name] for name in names)
    # The head of 32 samples is too much for the smaller device; where that comes first, it has a few layers.
    assert problems(asked(32, "v100-16gb", "a100-80gb")) == []
    for micro, stage, names in ((32, 1, ("a100-80gb", "v100-16gb")), (64, 0, ("v100-16gb", "a100-80gb"))):
        wrong = asked(micro, *names)
        (finding,) = problems(wrong)
        assert f"does not fit: stage {stage}" in finding["message"]
        assert "a device, and v100-16gb has 16.00 GiB" in finding["message"]
        assert wrong["predicted"]["memory_limit_bytes"] == 16 * GIB
        assert wrong["predicted"]["heaviest_stage"] == stage
