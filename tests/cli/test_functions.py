"""``package.module:function`` as a model: what is planned, and what is said when the function isn't what it must be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import main

pytest.importorskip("torch")

OWN = """
import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 32)

    def forward(self, input_ids, labels):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Choosing(Plain):
    def forward(self, input_ids, labels):
        if self.embedding(input_ids).sum() > 0:  # which way?
            return super().forward(input_ids, labels)
        return super().forward(labels, input_ids)


def inputs():
    return {"input_ids": torch.zeros(2, 8, dtype=torch.long), "labels": torch.zeros(2, 8, dtype=torch.long)}


def model(): return Plain(), inputs()
def factory(): return Plain, inputs()
def positions(): return Plain(), tuple(inputs().values())
def choosing(): return Choosing(), inputs()
def raising(): raise RuntimeError("no weights here")
def leaving(): raise SystemExit("goodbye")
def late(): return raising, inputs()
def needing(size): return Plain(), inputs()
def alone(): return Plain()
def number(): return 3, inputs()
def no_inputs(): return Plain(), 3
def other_inputs(): return Plain(), {"pixels": torch.zeros(2, 8)}
def misshapen(): return nn.Linear(4, 4), (torch.zeros(2, 5),)
size = 5
"""
OPTIONS = ["--cluster", "cpu", "--devices", "2", "--global-batch", "16", "--precision", "fp32"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module above in the current folder, forgotten afterwards."""
    (tmp_path / "own_model.py").write_text(OWN)
    (tmp_path / "own_import.py").write_text("import no_such_module\n")
    (tmp_path / "own_syntax.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in ("own_model", "own_import", "own_syntax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("function", ["model", "factory", "positions"])
def test_a_model_what_builds_it_and_inputs_by_position(function: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = [word for fix in ("tp=1", "pp=1", "zero=0") for word in ("--fix", fix)]
    assert main(["plan", f"own_model:{function}", *OPTIONS, *whole, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["model"], plan["seq"], plan["precision"]) == (function, 8, "fp32")
    (stage,) = plan["predicted"]["breakdown"]["stages"]
    assert stage["memory"]["parameters"] == 4 * (32 * 16 + 4 * (16 * 16 + 16) + 16 * 32 + 32)


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ("own_model:choosing", ["own_model:choosing", "Choosing", "depends on the values of tensors", "which way?"]),
        ("own_model:raising", ["own_model:raising raised RuntimeError: no weights here", "own_model.py, line"]),
        ("own_model:leaving", ["own_model:leaving raised SystemExit: goodbye"]),
        ("own_model:late", ["own_model:late", "raised RuntimeError: no weights here", "own_model.py, line"]),
        ("own_model:needing", ["own_model:needing raised TypeError", "size"]),
        ("own_model:alone", ["own_model:alone returned a value of type Plain", "(model, example_inputs)"]),
        ("own_model:number", ["returned a value of type int as the model"]),
        ("own_model:no_inputs", ["returned a value of type int as the example inputs"]),
        ("own_model:other_inputs", ["own_model:other_inputs", "input_ids"]),
        ("own_model:size", ["own_model:size is a value of type int, not a function"]),
        ("own_model:mdel", ['own_model has no "mdel"', "'model'"]),
        (
            "own_import:f",
            ["importing own_import raised ModuleNotFoundError", "no_such_module", "own_import.py, line 1"],
        ),
        ("own_syntax:f", ["importing own_syntax raised SyntaxError", "own_syntax.py, line 1"]),
        ("no_such_module:f", ['there is no module "no_such_module"']),
        ("own_model.inner:f", ['there is no module "own_model.inner"']),
    ],
)
def test_what_is_wrong_is_said(folder: Path, capfd: pytest.CaptureFixture[str], model: str, facts: list[str]) -> None:
    # capfd and not capsys: what torch itself prints on the way is to be seen here.
    assert main(["plan", model, *OPTIONS, "-o", "plan.json"]) == 2
    out, err = capfd.readouterr()
    assert [fact for fact in facts if fact not in err] == [], err
    assert (out, err.count("\n")) == ("", 1)
    assert "Traceback" not in err
    assert not (folder / "plan.json").exists()


@pytest.mark.slow
def test_torch_adds_nothing_to_the_message(folder: Path) -> None:
    # A process of its own: torch's log writes to the stderr of the moment when torch was imported.
    words = [sys.executable, "-m", "partita.cli.main", "plan", "own_model:misshapen", *OPTIONS]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "own_model:misshapen: torch.export can't capture Linear" in done.stderr
    assert "[2, 5] X [4, 4]" in done.stderr


def test_another_sequence_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "own_model:model", *OPTIONS, "--seq", "99"]) == 2
    assert "its example inputs have seq=8, not 99" in capsys.readouterr().err
