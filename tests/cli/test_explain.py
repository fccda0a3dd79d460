"""``partita explain``: what binds, other questions asked again, and what differs between two plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.cli.options import problem
from partita.errors import Infeasible
from partita.planner.joint.plan import solve

MODEL = ["gpt3-1.3b", "--cluster", "1x4xa100-80gb", "--global-batch", "16"]
TIGHT = [*MODEL, "--memory-gib", "9", "--fix", "micro_batch=1"]
GIB = 2**30


def seconds(*fix: str, memory: float = 9, batch: int = 16, devices: int = 4) -> float | None:
    cluster = f"1x{devices}xa100-80gb"
    try:
        asked = problem("gpt3-1.3b", cluster, None, batch, None, "bf16", "adam", int(memory * GIB), "deepspeed",
                        ("micro_batch=1", *fix))  # fmt: skip
        return solve(asked).best.seconds
    except Infeasible:
        return None


@pytest.mark.slow
def test_each_changed_question_is_answered_as_if_it_were_asked(partita: Callable[..., str]) -> None:
    found = json.loads(partita("explain", *TIGHT, "--json"))["asked"]
    said = {change["change"]: change["step_seconds"] for change in found["what_if"]}
    base = seconds()
    assert found["step_seconds"] == base
    questions = {
        "without recomputation": seconds("recompute=none"), "without ZeRO": seconds("zero=0"),
        "in one stage": seconds("pp=1"), "by gpipe": seconds("schedule=gpipe"),
        "1 GiB more a device": seconds(memory=10), "one more device": seconds(devices=5),
        "twice the global batch": seconds(batch=32),
    }  # fmt: skip
    # Decisions that the plan didn't take aren't asked about.
    assert {name: value for name, value in questions.items() if name in said} == {
        name: value for name, value in said.items() if not name.startswith("with ")
    }
    assert {"1 GiB more a device", "one more device", "twice the global batch"} <= said.keys()
    decisions = {
        change["change"]: change["step_seconds"] or float("inf")
        for change in found["what_if"] if change["kind"] == "decision"
    }  # fmt: skip
    assert found["matters_most"] == max(decisions, key=decisions.__getitem__)
    assert said["1 GiB more a device"] <= base
    assert all(other["step_seconds"] >= base for other in found["alternatives"])


def test_what_binds_a_stage(partita: Callable[..., str]) -> None:
    document = json.loads(partita("explain", *TIGHT, "--json"))
    pace = max(stage["pace_seconds"] for stage in document["stages"])
    for stage in document["stages"]:
        near = stage["pace_seconds"] >= 0.98 * pace
        assert near == bool({"time", "link"} & set(stage["binds"]))
        assert ("memory" in stage["binds"]) == (stage["memory"]["total"] >= 0.95 * 9 * GIB)
    assert any("memory" in stage["binds"] for stage in document["stages"])


def test_a_file_whose_question_had_more_in_it_is_not_asked_again(partita: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    partita("plan", *TIGHT, "-o", file)
    asked = json.loads(partita("explain", file, "--json"))["asked"]
    assert list(asked) == ["why_not"]
    assert "a memory limit, held decisions" in asked["why_not"]
    assert asked["why_not"][:60] in " ".join(partita("explain", file).split())


@pytest.mark.slow
def test_the_file_of_a_plan_s_model_is_given_as_is_suggested(
    partita: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plan = Path("tests/data/configs/bert-tiny.json"), tmp_path / "plan.json"
    partita("plan", file, *MODEL[1:], "-o", plan)
    before = json.loads(partita("explain", plan, "--json"))
    assert "--model MODEL says where it is" in before["asked"]["why_not"]
    after = json.loads(partita("explain", plan, "--model", file, "--json"))
    assert after["asked"] == json.loads(partita("explain", file, *MODEL[1:], "--json"))["asked"]
    for words, status in (((plan, plan), 2), ((plan, plan, "--model", file), 0)):
        assert main(["compare", *map(str, words)]) == status
    assert "--model MODEL says where it is" in capsys.readouterr().err


def test_two_plans_differ_by_stage_and_block(partita: Callable[..., str], tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    partita("plan", *MODEL, "--fix", "pp=2", "--fix", "recompute=none", "-o", one)
    partita("plan", *MODEL, "--fix", "pp=4", "--fix", "recompute=full", "-o", two)
    found = json.loads(partita("explain", one, two, "--json"))
    plans = [json.loads(file.read_text()) for file in (one, two)]
    assert not found["same"]
    rows = {row["what"]: (row["one"], row["two"]) for row in found["plan"]}
    assert rows["stages"] == (2, 4)
    assert rows["step seconds"] == tuple(plan["predicted"]["step_seconds"] for plan in plans)
    assert {"model", "cluster", "global batch", "target"}.isdisjoint(rows)
    names = [block for stage in plans[0]["stages"] for block in stage["blocks"]]
    assert [block for each in found["blocks"] for block in each["blocks"]] == names
    assert all((e["one"]["recomputation"], e["two"]["recomputation"]) == ("none", "full") for e in found["blocks"])
    text = partita("explain", one, two)
    faster = min(zip((one, two), plans, strict=True), key=lambda each: each[1]["predicted"]["step_seconds"])[0]
    assert "".join(text.split()).startswith("".join(f"{faster} is predicted to take".split()))


def test_a_plan_does_not_differ_from_itself(partita: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    partita("plan", *MODEL, "-o", file)
    assert "are the same plan" in partita("explain", file, file)
    found = json.loads(partita("explain", file, file, "--json"))
    assert (found["same"], found["plan"], found["blocks"]) == (True, [], [])


@pytest.fixture(scope="module")
def a_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("plan") / "plan.json")
    assert main(["plan", *MODEL, "-o", file]) == 0
    return file


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("{plan}", "gpt3-tiny"), '"gpt3-tiny" is no plan\'s file'),
        (("{plan}", "{plan}", "{plan}"), "3 plans: two at a time"),
        (("{plan}", "--fix", "tp=2"), "states its own problem; leave out --fix"),
        (("{plan}", "{plan}", "--model", "gpt3-tiny"), "--model gpt3-tiny goes with one plan's file"),
        (("gpt3-1.3b", "--model", "gpt3-tiny"), "--model gpt3-tiny goes with a plan's file; gpt3-1.3b is a model"),
    ],
)
def test_what_cannot_be_explained(
    words: tuple[str, ...], said: str, a_plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *(word.format(plan=a_plan) for word in words)]) == 2
    assert said in capsys.readouterr().err
