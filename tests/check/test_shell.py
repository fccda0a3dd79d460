"""Megatron's arguments out of shell scripts, which are read and not run; bad inputs of the command."""

from __future__ import annotations

import pytest

from partita.plugins.check.shell import read_arguments
from tests.check.command import Check, paths, problems

SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NNODES=${NNODES:-4}
export TP=2 # two
# --num-layers 99
ARGS="
    --num-layers 32 \\
    --hidden-size 4096
"
MORE="--num-attention-heads 32 --seq-length 2048"
PARALLEL=(
  --tensor-model-parallel-size $TP
  --pipeline-model-parallel-layout "Et*3|(tt|)*14,t|L"
  --sequence-parallel)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py ${ARGS} ${PARALLEL[@]} \\
  --micro-batch-size 1 --global-batch-size=512 --bf16 --split '949,50,1' --data-path 0.3 a 0.7 b --lr -1 \\
  --save "$CHECKPOINTS"
"""


def test_a_script_is_read() -> None:
    found = read_arguments(SCRIPT)
    assert found.values == {
        "--num-layers": "32", "--hidden-size": "4096", "--num-attention-heads": "32", "--seq-length": "2048",
        "--tensor-model-parallel-size": "2", "--pipeline-model-parallel-layout": "Et*3|(tt|)*14,t|L",
        "--sequence-parallel": None, "--nproc-per-node": "8", "--nnodes": "4", "--micro-batch-size": "1",
        "--global-batch-size": "512", "--bf16": None, "--split": "949,50,1", "--data-path": "0.3 a 0.7 b", "--lr": "-1",
        "--save": None,
    }  # fmt: skip
    text = SCRIPT.splitlines()
    for (flag,), line in found.lines.items():
        assert flag[:10] in text[line - 1].replace("nproc_per", "nproc-per")
    assert found.unset == {"--save": "$CHECKPOINTS"}
    assert found.remarks == []


def test_a_value_that_matters_and_is_not_set(check: Check) -> None:
    found = check(
        {"run.sh": 'torchrun x.py --num-layers $LAYERS --micro-batch-size "${MICRO:-2}" --save $DIR\n'}, status=0
    )
    (finding,) = found["findings"]
    assert (finding["severity"], finding["path"]) == ("warning", "--num-layers")
    assert "$LAYERS" in finding["message"]
    assert found["resolved"]["micro_batch"] == 2


def test_devices_come_from_the_launcher(check: Check) -> None:
    found = check({"run.sh": SCRIPT}, status=0)
    resolved = found["resolved"]
    assert (resolved["devices"], resolved["tp"], resolved["dp"], resolved["micro_batches"]) == (32, 2, 16, 32)
    assert resolved["layers_per_stage"] == [32]


def test_a_flag_that_stands_twice(check: Check) -> None:
    found = check({"run.sh": "--num-layers 4\n--num-layers 8\n"}, status=0)
    (finding,) = found["findings"]
    assert (finding["severity"], finding["line"]) == ("warning", 2)
    assert "4 on line 1, and 8, which counts" in finding["message"]


@pytest.mark.parametrize(
    ("text", "path", "works"),
    [
        ("--num-layer 4", "--num-layer", ["--num-layers"]),
        (
            "--num-layers 4 --tensor-model-paralel-size 2",
            "--tensor-model-paralel-size",
            ["--tensor-model-parallel-size"],
        ),
        ("--num-layers 4 --micro_batch_size 2", "--micro_batch_size", ["--micro-batch-size"]),
        ("--num-layers four", "--num-layers", []),
        ("--num-layers 0", "--num-layers", []),
        ("--bf16 --fp16", "--bf16", ["--fp16", "--bf16"]),
        ("--overlap-param-gather --overlap-grad-reduce", "--overlap-param-gather", ["--use-distributed-optimizer"]),
        (
            "--recompute-granularity full",
            "--recompute-granularity",
            ["--recompute-method uniform --recompute-num-layers 1"],
        ),
        (
            "--nproc_per_node 4 --micro-batch-size 3 --global-batch-size 16",
            "--global-batch-size",
            ["--global-batch-size: 12", "--global-batch-size: 24", "--micro-batch-size: 2", "--micro-batch-size: 4"],
        ),
    ],
)
def test_problems_of_argument_lists(check: Check, text: str, path: str, works: list[str]) -> None:
    (finding,) = problems(check({"args.txt": text}, status=1))
    assert (finding["path"], finding["works"]) == (path, works)


def test_a_flag_of_somebody_elses_script_is_a_warning(check: Check) -> None:
    found = check({"args.txt": "--num-layers 4 --my-own-colour red"}, status=0)
    assert paths(found, "warning") == ["--my-own-colour"]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--tp", "0"], ["--tp 0", "1 to 1,000,000"]),
        (["--devices", "10000000"], ["--devices 10000000", "1 to 1,000,000"]),
        (["--devices", "-4"], ["--devices -4"]),
        (["--devices", "many"], ['"many" is no whole number']),
        (["--model", "no-such-model"], ['there is no model "no-such-model"']),
        (["--cluster", "8xa100-80g"], ['there is no preset "a100-80g"']),
        (["--cluster", "cpu"], ["how many devices"]),
        (["--model", "gpt3-125m", "--seq", "999999"], ["999999", "2048"]),
        (["--colour"], ["--colour"]),
    ],
)
def test_options_that_can_not_be(check: Check, arguments: list[str], facts: list[str]) -> None:
    check.write("ds.json", {"train_micro_batch_size_per_gpu": 1})
    message = check.refused("ds.json", *arguments)
    assert [fact for fact in facts if fact not in message] == [], message


def test_options_against_the_file(check: Check) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}, "pipeline": {"stages": 2}}
    found = check({"ds.json": config}, "--devices", "8", status=0)
    assert (found["resolved"]["tp"], found["resolved"]["pp"]) == (2, 2)
    found = check({"ds.json": config}, "--devices", "8", "--tp", "4", "--pp", "2", status=1)
    assert paths(found, "problem") == ["tensor_parallel.autotp_size"]
