"""``partita export`` at the command line: where files go, what is printed and refused, and that ``check`` agrees."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from partita.cli.main import main
from partita.plan import save_plan
from partita.plugins.export.accelerate import nodes
from tests.export.plans import made, split
from tests.runtime.programs import Layout

CLI = Path(sys.executable).parent / "partita"
CONFIG = Path(__file__).parents[1] / "data" / "configs" / "gpt2.json"
CLUSTER = ["--cluster", "8xa100-80gb"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a plan of two copies, one of two stages and one that nobody here can express."""
    save_plan(made(Layout(dp=2, micro_batches=5, zero=2)), tmp_path / "copies.json")
    save_plan(split((1, 3)), tmp_path / "stages.json")
    save_plan(made(Layout(pp=2, micro_batches=4, schedule="gpipe")), tmp_path / "gpipe.json")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    before = {"copies.json", "stages.json", "gpipe.json", "file", "there"}
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} - before


@pytest.mark.parametrize(
    ("plan", "to", "output", "written"),
    [
        ("copies.json", "deepspeed", "ds.json", {"ds.json"}),
        ("copies.json", "deepspeed", "new/", {"new", "new/deepspeed.json"}),
        ("copies.json", "deepspeed", "there", {"there/deepspeed.json"}),
        ("stages.json", "deepspeed", "new", {"new", "new/deepspeed.json", "new/stages.json"}),
        ("stages.json", "megatron", "m.args", {"m.args"}),
        ("copies.json", "trainer", "file", set()),
        ("copies.json", "accelerate", "there", {"there/accelerate.json", "there/deepspeed.json"}),
        ("copies.json", "trainer", None, set()),
    ],
)
def test_files_are_written_where_they_are_wanted(
    folder: Path, capsys: pytest.CaptureFixture[str], plan: str, to: str, output: str | None, written: set[str]
) -> None:
    words = ["export", plan, "--to", to, *([] if output is None else ["-o", output])]
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["to"], found["processes"], err) == (to, 4 if plan == "stages.json" else 2, "")
    assert files(folder) == written
    for path, content in zip(found["written"], found["files"].values(), strict=False):
        text = (folder / path).read_text()
        assert (shlex.split(text) if isinstance(content, list) else json.loads(text)) == content
    assert len(found["written"]) == (0 if output is None else len(found["files"]))
    # For people: the same, with the paths or the files themselves.
    assert main(words) == 0
    out, err = capsys.readouterr()
    first = next(iter(found["files"]))
    assert out.startswith(f"written: {found['written'][0]}\n" if output else f"{first}:\n{{\n")
    assert [note for note in found["notes"] if f"  - {note}\n" not in out] == []


def test_an_argument_list_has_one_option_a_line(folder: Path) -> None:
    assert main(["export", "stages.json", "--to", "megatron", "-o", "m.args"]) == 0
    assert (folder / "m.args").read_text().splitlines() == [
        "--tensor-model-parallel-size 1",
        "--pipeline-model-parallel-size 2",
        "--num-layers 4",
        "--decoder-first-pipeline-num-layers 1",
        "--decoder-last-pipeline-num-layers 3",
        "--micro-batch-size 3",
        "--global-batch-size 24",
        "--seq-length 8",
        "--optimizer adam",
        "--untie-embeddings-and-output-weights",
    ]


@pytest.mark.parametrize(
    ("words", "status", "facts"),
    [
        (["gpipe.json", "--to", "deepspeed"], 1, ["can't be written for DeepSpeed", '"gpipe"', "--fix schedule=1f1b"]),
        (["stages.json", "--to", "trainer"], 1, ["can't be written for the Trainer", "pp=2", "--fix pp=1"]),
        (["copies.json", "--to", "megatron"], 1, ["Megatron's distributed optimizer", "ZeRO-2", "--fix zero=1"]),
        (["copies.json", "--to", "deepsped"], 2, ['no framework "deepsped"', "'deepspeed'"]),
        (["copies.json"], 2, ["--to"]),
        (["missing.json", "--to", "trainer"], 2, ["missing.json: no such file"]),
        (["file", "--to", "trainer"], 2, ["file: line 1, column 1: broken JSON"]),
        (["there", "--to", "trainer"], 2, ["there: is a folder"]),
        (["stages.json", "--to", "deepspeed", "-o", "file"], 2, ["file: is a file", "deepspeed.json and stages.json"]),
        (["copies.json", "--to", "trainer", "-o", "no/such/file"], 2, ["no/such/file: can't be written"]),
        (["stages.json", "--to", "deepspeed", "-o", "no/such/folder"], 2, ["no/such/folder: can't be made"]),
    ],
)
def test_what_is_wrong_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, facts: list[str]
) -> None:
    words = words if "-o" in words else [*words, "-o", "out/"]
    assert main(["export", *words]) == status
    out, err = capsys.readouterr()
    assert [fact for fact in facts if fact not in err] == [], err
    assert (out, err.count("\n"), "Traceback" in err) == ("", 1, False)
    assert files(folder) == set()
    assert (folder / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("cluster", "devices", "right"),
    [("4x8xa100-80gb", 32, 4), ("8xa100-80gb", 8, 1), ("4xcpu on 2 cores", 4, 1), ("mine", 8, 1), ("2x8xh200", 8, 1)],
)
def test_machines_of_a_cluster(cluster: str, devices: int, right: int) -> None:
    from dataclasses import replace

    assert nodes(replace(made(Layout(dp=devices)), cluster=cluster)) == right


def planned(fixes: list[str]) -> list[str]:
    return ["plan", str(CONFIG), *CLUSTER, "--global-batch", "32", *(w for fix in fixes for w in ("--fix", fix))]


@pytest.mark.parametrize(
    ("fixes", "to", "file", "others"),
    [
        pytest.param(["pp=4", "schedule=1f1b"], "deepspeed", "deepspeed.json", ["--pp", "4"], marks=pytest.mark.slow),
        (["pp=1", "tp=1", "zero=3"], "deepspeed", "deepspeed.json", []),
        (["pp=1", "tp=1", "zero=2", "recompute=full"], "trainer", "training_arguments.json", []),
        pytest.param(["pp=1", "tp=1", "zero=1"], "accelerate", "deepspeed.json", [], marks=pytest.mark.slow),
        pytest.param(["pp=4", "schedule=1f1b"], "megatron", "megatron.args", [], marks=pytest.mark.slow),
        (["pp=2", "tp=2", "zero=1", "recompute=full", "schedule=1f1b"], "megatron", "megatron.args", []),
    ],
)
def test_check_accepts_what_is_exported(
    folder: Path, capsys: pytest.CaptureFixture[str], fixes: list[str], to: str, file: str, others: list[str]
) -> None:
    assert main([*planned(fixes), "-o", "plan.json"]) == 0
    assert main(["export", "plan.json", "--to", to, "-o", "out/"]) == 0
    capsys.readouterr()
    status = main(["check", f"out/{file}", "--model", str(CONFIG), *CLUSTER, *others, "--json"])
    out, err = capsys.readouterr()
    found: dict[str, Any] = json.loads(out)
    assert (status, err) == (0, ""), found


@pytest.mark.slow
def test_it_imports_no_framework(folder: Path) -> None:
    words = [sys.executable, "-X", "importtime", CLI, "export", "stages.json", "--to", "deepspeed", "-o", "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "partita" in imported
    assert imported & {"torch", "deepspeed", "megatron", "transformers", "accelerate"} == set()
