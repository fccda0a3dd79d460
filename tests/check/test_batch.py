"""Batch arithmetic, and DeepSpeed's configuration against TrainingArguments."""

from __future__ import annotations

from itertools import product

import pytest

from partita.plugins.check.batch import batch_findings, completed
from partita.plugins.check.finding import Place
from partita.plugins.check.settings import Batch, Settings
from tests.check.command import Check, paths, problems

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
THREE = {TOTAL: 8, MICRO: 2, STEPS: 1}


@pytest.mark.parametrize(
    ("config", "arguments", "batch", "works"),
    [
        (THREE, ["--devices", "1"], None, [f"{STEPS}: 4", f"{MICRO}: 8", f"{TOTAL}: 2", "dp 4 (4 devices)"]),
        (THREE, ["--devices", "4"], (2, 1, 8), None),
        (THREE, ["--devices", "8", "--tp", "2"], (2, 1, 8), None),
        (
            THREE,
            ["--devices", "8", "--pp", "4"],
            None,
            [f"{STEPS}: 2", f"{MICRO}: 4", f"{TOTAL}: 4", "dp 4 (16 devices)"],
        ),
        ({TOTAL: 32}, ["--devices", "4"], (8, 1, 32), None),
        ({MICRO: 4}, ["--devices", "4"], (4, 1, 16), None),
        ({TOTAL: 30}, ["--devices", "4"], None, [f"{TOTAL}: 28", f"{TOTAL}: 32"]),
    ],
)
def test_c07_batch_arithmetic(
    check: Check, config: dict, arguments: list[str], batch: tuple | None, works: list | None
) -> None:
    found = check({"ds.json": config}, *arguments, status=1 if works else 0)
    resolved = found["resolved"]
    if batch:
        assert (resolved["micro_batch"], resolved["micro_batches"], resolved["global_batch"]) == batch
    assert [finding["works"] for finding in problems(found)] == ([works] if works else [])
    assert paths(found, "problem") == ([TOTAL] if works else [])


def test_c07_says_where_dp_comes_from(check: Check) -> None:
    (found,) = problems(check({"ds.json": THREE}, "--devices", "8", "--pp", "4"))
    assert found["message"].endswith(
        "8 is not train_micro_batch_size_per_gpu 2 · gradient_accumulation_steps 1 · dp 2 = 4 (dp = 8 devices / (pp 4))"
    )
    assert (found["file"], found["line"]) == ("ds.json", 2)


def settings(devices: int | None, total: int | None, micro: int | None, steps: int | None) -> Settings:
    keys = {"total": TOTAL, "micro": MICRO, "accumulation": STEPS}
    return completed(
        Settings("deepspeed", Place("ds.json", None, ""), devices, written=Batch(micro, steps, total), keys=keys)
    )


def test_the_batch_closes_exactly_where_no_problem_is_found() -> None:
    sizes = (None, 1, 2, 3, 4, 6)
    for dp, total, micro, steps in product((1, 2, 3, 4), (None, 4, 6, 8, 12, 36), sizes, sizes):
        found = settings(dp, total, micro, steps)
        refused = any(finding.severity == "problem" for finding in batch_findings(found))
        batch = found.batch
        if total or micro:
            closes = None not in (batch.total, batch.micro, batch.accumulation) and (
                batch.total == batch.micro * batch.accumulation * dp
            )
            assert refused != closes, (dp, total, micro, steps)


def test_every_change_that_is_offered_closes_the_batch() -> None:
    fields = {TOTAL: "total", MICRO: "micro", STEPS: "steps", "dp": "devices"}
    tried = 0
    for dp, total, micro, steps in product((1, 2, 3, 4), (4, 6, 8, 12, 30), (None, 1, 2, 3, 4), (None, 1, 2, 3)):
        given = {"devices": dp, "total": total, "micro": micro, "steps": steps}
        for finding in batch_findings(settings(**given)):
            for words in finding.works:
                name, value = words.replace(":", "").split()[:2]
                changed = settings(**{**given, fields[name]: int(value)})
                assert list(batch_findings(changed)) == [], (given, words)
                tried += 1
    assert tried > 300


def test_without_devices_only_what_can_never_close_is_a_problem(check: Check) -> None:
    assert problems(check({"ds.json": THREE})) == []
    (found,) = problems(check({"ds.json": {TOTAL: 9, MICRO: 2, STEPS: 2}}))
    assert found["works"] == [f"{TOTAL}: 8", f"{TOTAL}: 12"]


@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True, [8], 10**30])
def test_a_batch_that_is_no_positive_whole_number(check: Check, value: object) -> None:
    found = check({"ds.json": {MICRO: value}}, "--devices", "1", status=1)
    assert paths(found, "problem") == [MICRO]


DEEPSPEED = {
    MICRO: 4, STEPS: 4, TOTAL: 1000, "gradient_clipping": 1.1,
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "betas": [0.8, 0.89]}},
    "fp16": {"enabled": False},
}  # fmt: skip
TRAINER = {
    "output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 1.0,
    "adam_beta1": 0.9, "adam_beta2": 0.99, "fp16": True,
    "deepspeed": "ds.json",
}  # fmt: skip
SIX = [MICRO, STEPS, TOTAL, "gradient_clipping", "optimizer.params.betas", "fp16.enabled"]


def test_c08_two_sources_of_truth(check: Check) -> None:
    found = check({"ds.json": DEEPSPEED, "args.json": TRAINER}, "--devices", "1", status=1)
    two = [finding for finding in problems(found) if "args.json" in finding["message"]]
    assert sorted(finding["path"] for finding in two) == sorted(SIX)
    values = {finding["path"]: finding["message"] for finding in two}
    for path, here, there in zip(SIX, ("4", "4", "1000", "1.1", "[0.8, 0.89]", "false"),
                                 ("2", "2", "4", "1.0", "[0.9, 0.99]", "true"), strict=True):  # fmt: skip
        assert f"{path} is {here} here and {there} in args.json" in values[path]
    (itself,) = [finding for finding in problems(found) if finding not in two]
    assert itself["path"] == TOTAL
    assert "1000 is not" in itself["message"]
    assert "= 16 (" in itself["message"]


def test_c08_auto_takes_the_trainers_values(check: Check) -> None:
    auto = {
        MICRO: "auto", STEPS: "auto", TOTAL: "auto", "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}, "fp16": {"enabled": "auto"},
    }  # fmt: skip
    found = check({"ds.json": auto, "args.json": TRAINER}, "--devices", "1", status=0)
    assert found["findings"] == []
    assert found["resolved"]["auto"] == {
        MICRO: 2, STEPS: 2, TOTAL: 4, "gradient_clipping": 1.0, "optimizer.params.lr": 5e-5,
        "optimizer.params.betas": [0.9, 0.99], "fp16.enabled": True,
    }  # fmt: skip
    assert found["resolved"]["precision"] == "fp16"
    assert found["resolved"]["global_batch"] == 4


@pytest.mark.parametrize("inline", [True, False])
def test_training_arguments_name_or_hold_the_deepspeed_configuration(check: Check, inline: bool) -> None:
    check.write("ds.json", DEEPSPEED)
    arguments = {**TRAINER, "deepspeed": DEEPSPEED if inline else "ds.json"}
    found = check({"args.json": arguments}, "--devices", "1", status=1)
    prefix = "deepspeed." if inline else ""
    assert {finding["path"] for finding in problems(found)} == {prefix + path for path in SIX}
    (clipping,) = [finding for finding in problems(found) if finding["path"] == prefix + "gradient_clipping"]
    text = (check.folder / clipping["file"]).read_text().splitlines()
    assert "gradient_clipping" in text[clipping["line"] - 1]


def test_the_widths_that_auto_takes_from_the_model(check: Check) -> None:
    zero = {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto"}  # fmt: skip
    config = {MICRO: "auto", STEPS: "auto", "zero_optimization": zero, "fp16": {"enabled": "auto"}}
    model = {"model_type": "gpt2", "n_embd": 48, "n_layer": 4, "n_head": 12, "vocab_size": 96, "n_positions": 32}
    check.write("model.json", model)
    found = check({"ds.json": config, "args.json": TRAINER}, "--devices", "1", "--model", "model.json", status=0)
    auto = found["resolved"]["auto"]
    assert auto["zero_optimization.reduce_bucket_size"] == 48 * 48
    assert auto["zero_optimization.stage3_prefetch_bucket_size"] == int(0.9 * 48 * 48)
    assert auto["zero_optimization.stage3_param_persistence_threshold"] == 480


def test_auto_alone_is_noted_once(check: Check) -> None:
    found = check({"ds.json": {MICRO: "auto", STEPS: "auto"}}, "--devices", "2")
    (note,) = [finding for finding in found["findings"] if finding["severity"] == "note"]
    assert f"{MICRO}, {STEPS}" in note["message"]


def test_auto_that_nobody_fills_in(check: Check) -> None:
    config = {MICRO: "auto", "gradient_accumulation_steps": "auto", "zero_optimization": {"overlap_comm": "auto"}}
    found = check({"ds.json": config, "args.json": {**TRAINER, "fp16": False}}, "--devices", "1", status=0)
    assert paths(found, "warning") == ["zero_optimization.overlap_comm"]


def test_the_launchers_file_of_accelerate(check: Check) -> None:
    check.write("ds.json", {TOTAL: 8, MICRO: 2, STEPS: 1})
    launcher = {
        "distributed_type": "DEEPSPEED",
        "num_processes": 4,
        "deepspeed_config": {"deepspeed_config_file": "ds.json"},
    }
    found = check({"accelerate.json": launcher}, status=0)
    assert (found["resolved"]["devices"], found["resolved"]["global_batch"]) == (4, 8)
    assert found["files"] == {"accelerate.json": "accelerate configuration", "ds.json": "DeepSpeed configuration"}
    check({"accelerate.json": {**launcher, "num_processes": 2}}, status=1)
    check.write("accelerate.json", {**launcher, "deepspeed_config": {"zero_stage": 2}})
    assert "names no deepspeed_config_file" in check.refused("accelerate.json")


def test_accumulation_that_accelerate_would_put_in(check: Check) -> None:
    found = check({"ds.json": {MICRO: 2}, "args.json": {**TRAINER, "fp16": False}}, "--devices", "1")
    assert paths(found, "warning") == [STEPS]


def test_training_arguments_alone(check: Check) -> None:
    arguments = {"output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "bf16": True}
    found = check({"args.json": arguments}, "--devices", "4", status=0)
    resolved = found["resolved"]
    assert (resolved["global_batch"], resolved["precision"], resolved["recompute"]) == (24, "bf16", False)
