"""What a user can get wrong, one row each: the exit status, one message with the facts, no traceback, no file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import main

GPT = {"model_type": "gpt2", "n_embd": 48, "n_layer": 4, "n_head": 12, "vocab_size": 96, "n_positions": 32}
FILES = {
    "model.json": json.dumps(GPT),
    "broken.json": '{"model_type": "gpt2",\n "n_layer" 4}',
    "cut-off.json": '{"model_type": "gpt2",\n',
    "comment.json": '{\n  // the model\n  "model_type": "gpt2"}',
    "empty.json": "",
    "twice.json": '{"model_type": "gpt2", "n_layer": 2, "n_layer": 3}',
    "misspelt.json": json.dumps({**{key: GPT[key] for key in GPT if key != "n_layer"}, "n_layers": 4}),
    "word.json": json.dumps({**GPT, "n_layer": "four"}),
    "negative.json": json.dumps({**GPT, "n_layer": -4}),
    "zero.json": json.dumps({**GPT, "n_head": 0}),
    "nan.json": '{"model_type": "gpt2", "n_layer": NaN}',
    "huge.json": json.dumps({**GPT, "n_layer": 10**30}),
    "digits.json": '{"model_type": "gpt2", "n_layer": ' + "9" * 5000 + "}",
    "deep.json": "[" * 100_000,
    "list.json": "[1, 2]",
    "kind.json": json.dumps({"model_type": "gtp2"}),
    "nothing.json": "{}",
    "graph.json": json.dumps({"ops": [], "blocks": [], "colour": "red"}),
    "plan.json": json.dumps({"stages": [], "version": 1}),
    "bytes.json": b"\xff\xfe{}",
    "cluster.json": json.dumps({"nodes": [4], "preset": "a100-80gb", "colour": "red"}),
    "no-nodes.json": json.dumps({"nodes": [], "preset": "a100-80gb"}),
    "unknown-preset.json": json.dumps({"nodes": [4], "preset": "a100-80g"}),
    "folder/other.json": "{}",
}
PLAN = {"--cluster": "2x4xa100-80gb", "--global-batch": "16", "-o": "out.json"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files above, in the current folder."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(model: str, **options: str | list[str] | None) -> list[str]:
    """``partita plan`` with the options above, others put in or (None) left out."""
    changed = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    words = ["plan", model]
    for name, value in {**PLAN, **changed}.items():
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [name, one]
    return words


def refused(capsys: pytest.CaptureFixture[str], folder: Path, words: list[str], status: int, facts: list[str]) -> None:
    before = sorted(folder.rglob("*"))
    found = main(words)
    out, err = capsys.readouterr()
    assert [fact for fact in facts if fact not in err] == [], err
    assert (found, out) == (status, "")
    assert err.startswith("partita: ")
    assert err.count("\n") == 1, "one message is one line"
    assert "Traceback" not in err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ("missing.json", ["missing.json: no such file"]),
        ("no/such/folder", ["no/such/folder: no such file or folder", "hub"]),
        ("folder", ["folder/config.json: no such file"]),
        ("broken.json", ["broken.json: line 2, column 12: broken JSON", '"n_layer" 4']),
        ("cut-off.json", ["cut-off.json: line 2, column 1: broken JSON"]),
        ("comment.json", ["comment.json: line 2, column 3: broken JSON", "JSON has no comments"]),
        ("empty.json", ["empty.json: line 1, column 1: broken JSON", "The file is empty"]),
        ("twice.json", ['twice.json: the key "n_layer" occurs twice']),
        ("misspelt.json", ['misspelt.json: "n_layers" is unknown', 'did you mean "n_layer"?']),
        ("word.json", ["word.json: n_layer", "'four'"]),
        ("negative.json", ["negative.json: n_layer", "-4"]),
        ("zero.json", ["zero.json: n_head", "0"]),
        ("nan.json", ["nan.json: n_layer", "nan"]),
        ("huge.json", ["huge.json: n_layer", "1000000"]),
        ("digits.json", ["digits.json", "5000 digits"]),
        ("deep.json", ["deep.json", "nested too deeply"]),
        ("list.json", ["list.json: a JSON object is needed"]),
        ("kind.json", ["kind.json: model_type 'gtp2'", "'gpt2'"]),
        ("nothing.json", ['nothing.json: "model_type" is missing']),
        ("graph.json", ["graph.json: ", "colour"]),
        ("bytes.json", ["bytes.json: can't be read"]),
        ("", ["MODEL is empty"]),
        ("gpt3-6b", ['there is no model "gpt3-6b"', "Did you mean 'gpt3-6.7b'"]),
        ("zzz", ['there is no model "zzz"', "gpt3-tiny", "package.module:function"]),
        ("a:b:c", ['"a:b:c" is not of the form package.module:function']),
    ],
)
def test_models(folder: Path, capsys: pytest.CaptureFixture[str], model: str, facts: list[str]) -> None:
    refused(capsys, folder, command(model), 2, facts)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"cluster": None}, ["Missing option '--cluster'", "partita plan --help"]),
        ({"cluster": "0xa100-80gb"}, ['"0xa100-80gb": 0']),
        ({"cluster": "-2x4xa100-80gb"}, ['"-2x4xa100-80gb": -2']),
        ({"cluster": "4x8xa100-80g"}, ['there is no preset "a100-80g"', "'a100-80gb'"]),
        ({"cluster": "4x8"}, ['"4x8"', "nodes x devices x preset", "h200"]),
        ({"cluster": "99999999xh200"}, ["99999999", "1,000,000"]),
        ({"cluster": "cpu"}, ['"cpu"', "--devices 4"]),
        ({"cluster": "cpu", "devices": "0"}, ['"cpu": 0', "1 to 1,000,000"]),
        ({"cluster": "cpu", "devices": "-3"}, ['"cpu": -3']),
        ({"cluster": "cpu", "devices": "two"}, ["--devices", '"two" is no whole number']),
        ({"cluster": "8xh200", "devices": "4"}, ["8xh200", "leave out --devices 4"]),
        ({"cluster": "none.json"}, ["none.json: no such file"]),
        ({"cluster": "broken.json"}, ["broken.json: line 2, column 12"]),
        ({"cluster": "cluster.json"}, ["cluster.json: colour", "'red'"]),
        ({"cluster": "no-nodes.json"}, ["no-nodes.json: nodes"]),
        ({"cluster": "unknown-preset.json"}, ["unknown-preset.json: preset", "'a100-80gb'"]),
        ({"global_batch": None}, ["Missing option '--global-batch'"]),
        ({"global_batch": "0"}, ["global batch 0"]),
        ({"global_batch": "-16"}, ["global batch -16"]),
        ({"global_batch": "1.5"}, ["--global-batch", '"1.5" is no whole number']),
        ({"global_batch": "nan"}, ["--global-batch", '"nan" is no whole number']),
        ({"global_batch": "1" + "0" * 18}, ["global batch 1000000000000000000", "10,000,000"]),
        ({"global_batch": "9" * 5000}, ["--global-batch", "(5000 characters)"]),
        ({"seq": "0"}, ["seq=0"]),
        ({"seq": "-1"}, ["seq=-1"]),
        ({"seq": "33"}, ["seq=33", "32 learned positions"]),
        ({"seq": "9" * 20}, ["seq=9999", "2147483647"]),
        ({"memory_gib": "0"}, ["--memory-gib", '"0"']),
        ({"memory_gib": "-1"}, ["--memory-gib", '"-1"']),
        ({"memory_gib": "nan"}, ["--memory-gib", '"nan"']),
        ({"memory_gib": "inf"}, ["--memory-gib", '"inf"']),
        ({"memory_gib": "1e30"}, ["--memory-gib", '"1e30"', "a million GiB"]),
        ({"memory_gib": "80gb"}, ["--memory-gib", '"80gb" is no number']),
        ({"precision": "bf61"}, ['there is no precision "bf61"', "'bf16'"]),
        ({"optimizer": "adamm"}, ['there is no optimizer "adamm"', "'adam'"]),
        ({"target": "deepsped"}, ['there is no target "deepsped"', "'deepspeed'"]),
        ({"cluster": "8xv100-16gb"}, ["v100-16gb", "bfloat16", "fp16"]),
        ({"fix": "tp=8"}, ["tp=8 does not divide heads=12", "transformer.h.0", "1, 2, 3, 4, 6 and 12"]),
        ({"fix": "pp=7"}, ["pp=7: 7 stages need at least 7 blocks, the model has 6"]),
        ({"fix": "pp=0"}, ['"pp=0"', "at least 1"]),
        ({"fix": "tp=nan"}, ['"tp=nan"', "whole number"]),
        ({"fix": "tq=2"}, ['"tq=2"', "'tp'"]),
        ({"fix": "tp"}, ['"tp" has no value', "tp=1"]),
        ({"fix": ["tp=2", "tp=4"]}, ['"tp=4"', "tp=2"]),
        ({"fix": "zero=3", "target": "megatron"}, ["zero=3", "Megatron"]),
        ({"colour": "red"}, ["No such option: --colour"]),
    ],
    ids=str,
)
def test_options(folder: Path, capsys: pytest.CaptureFixture[str], options: dict, facts: list[str]) -> None:
    refused(capsys, folder, command("model.json", **options), 2, facts)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["plot"], ["No such command 'plot'"]),
        (["plam"], ["No such command 'plam'. Did you mean 'plan'? See partita --help"]),
        (["plan"], ["Missing argument 'MODEL'"]),
        ([*command("model.json"), "other.json"], ["unexpected extra argument", "other.json"]),
        (["explain", "model.json"], ["model.json is a model and no plan", "--cluster and --global-batch"]),
        (["explain", "missing.json"], ["missing.json: no such file"]),
        (["explain", "plan.json"], ["plan.json: ", "model: "]),
        (["explain", "plan.json", "--seq", "8"], ["plan.json is a plan", "leave out --seq"]),
        (["explain", "broken.json"], ["broken.json: line 2, column 12"]),
        (["run", "gpt3-tinny"], ['there is no recipe "gpt3-tinny"', "'gpt3-tiny'"]),
        ([*command("model.json", o=None), "-o", "no/folder/out.json"], ["no/folder/out.json: can't be written"]),
        ([*command("model.json", o=None), "-o", "folder"], ["folder: can't be written"]),
    ],
    ids=str,
)
def test_other_lines(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], facts: list[str]) -> None:
    refused(capsys, folder, words, 2, facts)


def test_too_little_memory_is_an_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = ["nothing fits 0.50 GiB", "the least is", "Stage 0 binds", "GiB"]
    refused(capsys, folder, command("model.json", memory_gib="0.5"), 1, facts)


def test_an_unreadable_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A link to itself: root, who may read every file, can't read that either.
    (folder / "loop.json").symlink_to("loop.json")
    refused(capsys, folder, command("loop.json"), 2, ["loop.json: can't be read", "symbolic links"])


def test_debug_shows_the_traceback_anywhere_on_the_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--debug", *command("gpt3-6b")], [*command("gpt3-6b"), "--debug"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith('partita: there is no model "gpt3-6b"')


@pytest.mark.parametrize(
    ("words", "status", "fact"),
    [
        pytest.param(command("broken.json"), 2, "broken.json: line 2, column 12", marks=pytest.mark.slow),
        pytest.param(command("model.json", memory_gib="0.5", json=None), 1, "the least is", marks=pytest.mark.slow),
        ([], 2, "Usage: partita"),
    ],
    ids=["input", "answer", "nothing"],
)
def test_as_a_process(folder: Path, words: list[str], status: int, fact: str) -> None:
    cli = Path(sys.executable).parent / "partita"
    done = subprocess.run([cli, *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, "")
    assert fact in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "out.json").exists()
