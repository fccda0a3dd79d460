"""Unknown and misspelt keys and flags; precision sections; what is not JSON."""

from __future__ import annotations

import json

import pytest

from partita.plugins.check.positions import key_lines
from partita.plugins.check.tables import arity, table
from tests.check.command import Check, paths, problems

MICRO = "train_micro_batch_size_per_gpu"


@pytest.mark.parametrize(
    ("config", "path", "works", "effect"),
    [
        ({"train_batch_size": 8, "gradient_clipp1ng": 1}, "gradient_clipp1ng", ["gradient_clipping"], "has no effect"),
        (
            {"zero_optimization": {"stage": 2, "overlap_com": True}},
            "zero_optimization.overlap_com",
            ["overlap_comm"],
            "refuses to start",
        ),
        ({"zero_optimisation": {"stage": 2}}, "zero_optimisation", ["zero_optimization"], "has no effect"),
        (
            {"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}},
            "zero_optimization.offload_optimizer.devise",
            ["device"],
            "refuses to start",
        ),
        ({"bf16": {"enable": True}}, "bf16.enable", ["enabled"], "refuses to start"),
        ({"overlap_comm": True}, "overlap_comm", ["zero_optimization.overlap_comm"], "has no effect"),
        (
            {"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}},
            "optimizer.params.learning_rate",
            [],
            "takes no",
        ),
        ({"optimizer": {"type": "Adam", "params": {"beta": 1}}}, "optimizer.params.beta", ["betas"], "takes no"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 1}}},
            "scheduler.params.warmup_steps",
            None,
            "takes no",
        ),
        ({"partita": {"clustr": "8xh200"}}, "partita.clustr", ["cluster"], "unknown option"),
        (
            {"partita": {"colour": 1}},
            "partita.colour",
            [],
            "cluster, memory_gib, plan, pipeline, tensor_parallel, seq, fix, dry_run",
        ),
        ({"elasticity": {"enabled": True}}, "elasticity", ["leave out elasticity"], "is gone from DeepSpeed"),
        ({"zero_optimization": 2}, "zero_optimization", [], "an object is needed"),
    ],
)
def test_c27_unknown_keys(check: Check, config: dict, path: str, works: list | None, effect: str) -> None:
    found = check({"ds.json": {MICRO: 1, **config}}, status=1)
    (finding,) = problems(found)
    assert finding["path"] == path
    assert effect in finding["message"]
    if works is not None:
        assert finding["works"] == works
    last = path.split(".")[-1]
    line = (check.folder / "ds.json").read_text().splitlines()[finding["line"] - 1]
    assert line.strip().startswith(f'"{last}"')


def test_c27_a_key_that_was_switched_off_has_no_effect(check: Check) -> None:
    found = check({"ds.json": {MICRO: 1, "_fp16_off": {"enabled": True}}}, status=0)
    (finding,) = found["findings"]
    assert (finding["severity"], finding["path"]) == ("warning", "_fp16_off")
    assert "it has no effect" in finding["message"]


def test_c27_comments_are_not_json(check: Check) -> None:
    check.write("ds.json", '{\n  // tuned on Monday\n  "train_batch_size": 8}\n')
    message = check.refused("ds.json", "--devices", "8")
    assert "ds.json: line 2, column 3" in message
    assert "JSON has no comments" in message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cluster": "8xh200", "plan": "p.json", "dry_run": True},
        {"cluster": "8xh200", "memory_gib": 70, "pipeline": "auto", "tensor_parallel": "off", "seq": 2048,
         "fix": {"zero": 1}, "dry_run": True},
    ],
)  # fmt: skip
def test_partita_itself_is_known(check: Check, options: dict) -> None:
    assert check({"ds.json": {MICRO: 1, "partita": options}}, status=0)["findings"] == []


@pytest.mark.parametrize(
    "files",
    [
        {"model.json": {"model_type": "gpt2"}},
        {"plan.json": {"stages": [], "predicted": {}}},
        {"list.json": "[1]"},
        {"words.txt": "no flags here"},
        {"empty.json": ""},
        {"twice.json": '{"steps_per_print": 1, "steps_per_print": 2}'},
    ],
)
def test_what_is_no_configuration(check: Check, files: dict) -> None:
    (name,) = (check.write(name, content) for name, content in files.items())
    assert name in check.refused(name)


def test_files_that_do_not_go_together(check: Check) -> None:
    check.write("a.json", {MICRO: 1})
    check.write("b.json", {MICRO: 2})
    check.write("run.sh", "--num-layers 4\n")
    assert "a.json and b.json are both DeepSpeed configuration" in check.refused("a.json", "b.json")
    assert "without a.json" in check.refused("a.json", "run.sh")
    assert "missing.json: no such file" in check.refused("missing.json")


def test_c26_bf16_in_the_fp16_section(check: Check) -> None:
    config = {MICRO: 1, "fp16": {"enabled": True, "type": "bfloat16", "loss_scale": 0, "hysteresis": 2}}
    found = check({"ds.json": config}, status=1)
    (finding,) = problems(found)
    assert finding["path"] == "fp16.type"
    assert finding["works"] == ['"bf16": {"enabled": true} in place of fp16']
    assert found["resolved"]["precision"] == "fp16"


def test_c26_both_precisions(check: Check) -> None:
    found = check({"ds.json": {MICRO: 1, "fp16": {"enabled": True}, "bf16": {"enabled": True}}}, status=1)
    assert paths(found, "problem") == ["bf16.enabled"]
    assert problems(found)[0]["works"] == ["fp16.enabled: false", "bf16.enabled: false"]


def test_c26_loss_scaling_with_bf16_is_a_note(check: Check) -> None:
    config = {"bf16": {"enabled": True}, "fp16": {"enabled": False, "initial_scale_power": 16}}
    found = check({"ds.json": config}, status=0)
    assert paths(found, "note") == ["fp16.initial_scale_power"]
    assert paths(check({"ds.json": {**config, MICRO: 1}}, status=0), "warning") == []


@pytest.mark.parametrize(
    ("key", "severity", "works"),
    [
        ("per_device_train_batchsize", "problem", ["per_device_train_batch_size"]),
        ("gradient_accumulation_step", "problem", ["gradient_accumulation_steps"]),
        ("dataset_name", "warning", []),
    ],
)
def test_keys_of_training_arguments(check: Check, key: str, severity: str, works: list[str]) -> None:
    found = check({"args.json": {"output_dir": "out", "seed": 1, key: 2}})
    assert [(f["severity"], f["path"], f["works"]) for f in found["findings"]] == [(severity, key, works)]


@pytest.mark.slow
def test_the_tables_hold_what_the_frameworks_know() -> None:
    """DeepSpeed's classes are asked only here; the command reads the tables alone."""
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from transformers import TrainingArguments

    keys = table("deepspeed_keys")["keys"]
    for name, model in (
        ("zero_optimization", DeepSpeedZeroConfig),
        ("fp16", DeepSpeedFP16Config),
        ("bf16", DeepSpeedBF16Config),
    ):
        fields = {field.alias or field_name for field_name, field in model.model_fields.items()}
        assert fields <= keys[name].keys()
    fields = TrainingArguments.__dataclass_fields__
    known = table("training_arguments")["keys"]
    assert {name for name, field in fields.items() if field.init} == known.keys()
    assert known["per_device_train_batch_size"] == fields["per_device_train_batch_size"].default


def test_flags_of_megatron_and_their_arity() -> None:
    kinds = arity()
    assert {
        flag: kinds[flag]
        for flag in ("--bf16", "--num-layers", "--data-path", "--nproc-per-node", "--sequence-parallel")
    } == {
        "--bf16": "switch",
        "--num-layers": "one",
        "--data-path": "values",
        "--nproc-per-node": "one",
        "--sequence-parallel": "switch",
    }
    assert len(kinds) > 600


def test_lines_of_keys() -> None:
    text = '{"a": {"b": [1, {"c":\n "}\\"{,:"}],\n\n"d\\u0041": null},\n"e": [[], {}]}'
    assert json.loads(text)["a"]["dA"] is None
    assert key_lines(text) == {
        ("a",): 1,
        ("a", "b"): 1,
        ("a", "b", 1, "c"): 1,
        ("a", "dA"): 4,
        ("e",): 5,
    }
