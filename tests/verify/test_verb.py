"""``partita verify``: what it prints, its exit statuses, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from partita.adapters.torch.prepare import Lowered
from partita.adapters.verify.planned import needed_bytes, require_memory
from partita.adapters.verify.report import document, text
from partita.cli.main import main
from partita.errors import InputError
from partita.plan import save_plan
from tests.runtime.programs import Layout
from tests.runtime.programs import plan as plan_by_hand
from tests.runtime.programs import program as by_hand
from tests.verify.models import model
from tests.verify.test_mutants import other_epsilon

# A model whose batches have a size and a range of their own.
OWN = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 32)

    def forward(self, input_ids, labels, times):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + torch.relu(layer(x)) * times
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def build():
    ids = torch.arange(6).reshape(1, 6)
    return Model, {"input_ids": ids, "labels": ids, "times": torch.tensor(0.5)}
"""
PLAN = """
from partita.draft import op_assign, op_order, op_trans
from partita.plan import Axis


def halves(draft):
    for blocks, devices in zip(draft.parts(draft.blocks, 2), draft.shares(2), strict=True):
        op_assign(draft, blocks, devices, data=len(devices))
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("turns", 2), "turns"))
    op_order(draft, "gpipe")
"""
OF_MODEL = ["--devices", 4, "--global-batch", 8]


@pytest.fixture
def partita(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in a folder with a model and a plan function; its status, what it printed, and its error."""
    (tmp_path / "own_model.py").write_text(OWN)
    (tmp_path / "own_plan.py").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_model", raising=False)

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main([str(word) for word in ("verify", *words)])
        return status, *capfd.readouterr()

    return run


def test_json_has_the_promised_keys(partita: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = partita(
        "own_model:build", "--plan-function", "own_plan.py:halves", *OF_MODEL, "--fix", "turns=4", "--json"
    )
    found = json.loads(out)
    assert status == 0
    assert found["equal"] is True
    assert found["max_abs_error"].keys() == {"loss", "gradients", "parameters"}
    assert all(error < 1e-10 for error in found["max_abs_error"].values())
    assert found["steps"] == 3
    assert found["layers"]["model"] == found["layers"]["plan"] == 6
    assert found["devices"] == 4
    assert found["first_difference"] is None
    assert [one["device"] for one in found["bytes"]] == [0, 1, 2, 3]
    # One sample of 6 × 16 values, both ways, four micro-batches a copy and three steps: 8 samples over two copies.
    assert [one["sent"] for one in found["bytes"]] == [3 * 4 * 6 * 16 * 8] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interleaved", "zero-bubble", "co-shard", "megatron"])
def test_a_plan_of_the_library_by_name(partita: Callable[..., tuple[int, str, str]], name: str) -> None:
    status, out, _ = partita("gpt3-tiny", "--plan-function", name, "--devices", 2, "--global-batch", 8, "--seq", 16)
    assert status == 0
    assert "gpt3-tiny: equal. 3 steps of Adam on 2 virtual devices and on one device, float64, 8 samples a step" in out
    assert "layers: 6 in the model, 6 on the devices" in out


@pytest.mark.slow
def test_a_planners_plan_from_its_file(partita: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    assert main(["plan", "swin-tiny", "--cluster", "cpu", "--devices", "4", "--global-batch", "8", "-o", "p.json"]) == 0
    status, out, _ = partita("p.json", "--json")
    assert (status, json.loads(out)["equal"]) == (0, True)


@pytest.mark.slow
def test_a_mutant_is_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a program with another epsilon: the op by name, in text and as JSON."""
    found = model("gpt2")
    graph = found.captured.graph
    mutant, words = other_epsilon(by_hand(graph, Layout(dp=2)))
    verdict = found.verify(mutant)
    printed = text(verdict, plan_by_hand(graph, Layout(dp=2)))
    assert "gpt2: NOT equal." in printed
    assert f"first difference: {words} on device 0" in printed
    value = document(verdict)
    assert value["equal"] is False
    assert f'op "{value["first_difference"]["op"]}"' == words
    assert json.loads(json.dumps(value, allow_nan=False)) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt3-tiny"], "gpt3-tiny is a model and no plan: --plan-function must say which, one of 1f1b, "),
        (
            ["gpt3-tiny", "--plan-function", "zero-4", *OF_MODEL],
            'there is no plan "zero-4" in the library. Did you mean',
        ),
        (["gpt3-tiny", "--plan-function", "1f1b"], "--devices and --global-batch must say what it is planned for"),
        (["gpt3-tiny", "--plan-function", "1f1b", *OF_MODEL, "--model", "x"], "--model x goes with a plan's file"),
        (["nothing.json"], "nothing.json: no such file"),
        (["own.json", "--devices", 2], "own.json is a plan and states its own problem; leave out --devices"),
        (["own.json"], 'the plan\'s model "gpt2" is neither a recipe nor a file here; --model MODEL says where it is'),
        (["own.json", "--model", "own_model:build"], "the plan has 6 blocks"),
        (["own.json", "--model", "own_plan:halves"], "own_plan:halves raised TypeError"),
    ],
)
def test_what_is_wrong_is_said(
    partita: Callable[..., tuple[int, str, str]], tmp_path: Path, words: list[object], said: str
) -> None:
    save_plan(plan_by_hand(model("gpt2").captured.graph, Layout(pp=2)), tmp_path / "own.json")
    status, out, error = partita(*words)
    assert (status, out) == (2, "")
    assert said in error
    assert "Traceback" not in error


def test_a_model_that_the_machine_cannot_hold_is_refused_with_numbers() -> None:
    graph = model("gpt2").captured.graph
    plan = plan_by_hand(graph, Layout(dp=2))
    lowered = Lowered(model("gpt2").captured, by_hand(graph, Layout(dp=2)))
    needed = needed_bytes(lowered, plan)
    values = sum(tensor.bytes for tensor in graph.tensors if tensor.role == "value")
    # 7 numbers of 8 bytes for each parameter of two copies and of one device; the values of 8 samples, captured with 2.
    assert needed == graph.parameter_count * 56 * 3 + values * 4
    require_memory(lowered, plan, "plan.json", needed)
    with pytest.raises(InputError) as error:
        require_memory(lowered, plan, "plan.json", needed - 1)
    assert f'plan.json: "gpt2" has {graph.parameter_count:,} parameters; 2 virtual devices' in str(error.value)
    assert "a global batch of 8" in str(error.value)
