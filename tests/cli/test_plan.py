"""``partita plan`` and ``explain``: what they print, what they write, and that both say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from partita.cli.binding import heaviest, paces, slowest
from partita.cli.main import main
from partita.cli.options import problem
from partita.cli.show import found
from partita.graph import save_graph
from partita.plan import load_plan, plan_document
from partita.planner import plan as planned
from partita.plugins.capture_huggingface import capture_config

LARGE = ["gpt3-1.3b", "--cluster", "2x4xa100-80gb", "--global-batch", "64"]
EXPLAINED = ["gpt3-125m", "--cluster", "1x4xa100-80gb", "--global-batch", "8"]
KEYS = {
    "version", "model", "cluster", "target", "precision", "optimizer", "seq", "global_batch", "schedule", "order",
    "stages", "shared_parameters", "predicted", "reasons", "search",
}  # fmt: skip


def test_the_envelope_has_the_promised_keys(partita: Callable[..., str]) -> None:
    plan = json.loads(partita("plan", *LARGE, "--json"))
    assert plan.keys() >= KEYS
    assert plan["search"].keys() >= {"engine", "seconds", "optimal", "bound_seconds", "considered"}
    blocks = [block for stage in plan["stages"] for block in stage["blocks"]]
    assert blocks == ["embedding", *(f"transformer.h.{layer}" for layer in range(24)), "head"]
    assert sorted(device for stage in plan["stages"] for device in stage["devices"]) == list(range(8))
    for stage in plan["stages"]:
        assert stage["samples"] * stage["micro_batches"] == 64
        assert len(stage["strategies"]) == len(stage["blocks"])
        assert len(stage["devices"]) == stage["dp"] * stage["tp"]
    # Each is written in nine digits.
    assert isclose(plan["predicted"]["samples_per_second"] * plan["predicted"]["step_seconds"], 64, rel_tol=1e-8)
    assert plan["seq"] == 2048  # the recipe's context, not the 1024 of a plain gpt2 configuration


def test_the_file_is_the_envelope_without_measurements_and_always_the_same(
    partita: Callable[..., str], tmp_path: Path
) -> None:
    envelope = json.loads(partita("plan", *LARGE, "--json", "-o", tmp_path / "one.json"))
    partita("plan", *LARGE, "-o", tmp_path / "two.json")
    del envelope["search"]["seconds"]
    assert json.loads((tmp_path / "one.json").read_text()) == envelope
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_people_see_every_stage_and_every_reason(partita: Callable[..., str], tmp_path: Path) -> None:
    text = partita("plan", *LARGE, "--fix", "pp=4", "-o", tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    words = " ".join(text.split())
    for stage in plan.stages:
        assert f"{stage.name} {stage.blocks[0]} … " in words
    (first, _, _, last) = plan.stages
    assert f"{first.blocks[0]} … {first.blocks[-1]} ({len(first.blocks)}) 0-1 " in words
    assert f"… head ({len(last.blocks)}) 6-7 " in words
    assert f"on every stage: dp {first.dp}, tp {first.tp}, micro-batches {first.micro_batches}" in words
    for reason in plan.reasons:
        assert " ".join(reason.split()) in words
    heavy, _ = heaviest(plan)
    assert f"{heavy.memory.total / 2**30:.2f} heaviest" in words
    assert "written: " in words


def test_idle_devices_are_named(partita: Callable[..., str]) -> None:
    text = partita("plan", "gpt3-tiny", "--cluster", "cpu", "--devices", "7", "--global-batch", "4")
    assert "idle devices: 6\n" in text


@pytest.mark.slow
def test_explain_says_the_same_of_the_file_and_of_the_question(partita: Callable[..., str], tmp_path: Path) -> None:
    partita("plan", *EXPLAINED, "-o", tmp_path / "plan.json")
    asked = partita("explain", *EXPLAINED)
    assert partita("explain", tmp_path / "plan.json") == asked
    # A plan is known by its content: -o takes any name.
    (tmp_path / "my.plan").write_bytes((tmp_path / "plan.json").read_bytes())
    assert partita("explain", tmp_path / "my.plan") == asked
    found = json.loads(partita("explain", tmp_path / "plan.json", "--json"))
    plan = load_plan(tmp_path / "plan.json")
    assert [stage["memory"]["total"] for stage in found["stages"]] == [
        plan.predicted.peak_bytes[stage.devices[0]] for stage in plan.stages
    ]
    assert found["reasons"] == list(plan.reasons)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("pp", [2, 4, 6])
def test_the_pace_is_the_maximum_in_the_formula(schedule: str, pp: int) -> None:
    """Σ + (c − 1) · pace + end of step is the step for 1F1B; GPipe's two maxima may lie on different stages."""
    held = (f"pp={pp}", "micro_batch=2", f"schedule={schedule}")
    plan = planned(problem("gpt3-tiny", f"1x{pp}xa100-80gb", None, 64, None, "bf16", "adam", None, "deepspeed", held))
    stages = plan.predicted.breakdown.stages
    total = sum(s.forward_seconds + s.backward_seconds for s in stages)
    total += sum(s.transfer_forward_seconds + s.transfer_backward_seconds for s in stages)
    sync, count = max(s.sync_seconds for s in stages), plan.stages[0].micro_batches
    assert count == 32
    pace = max(p.seconds for p in paces(plan))
    step = total + (count - 1) * pace + sync
    if schedule == "1f1b":
        assert isclose(step, plan.predicted.step_seconds, rel_tol=1e-9)
    else:
        forward = max(max(s.forward_seconds, s.transfer_forward_seconds) for s in stages)
        backward = max(max(s.backward_seconds, s.transfer_backward_seconds) for s in stages)
        assert isclose(total + (count - 1) * (forward + backward) + sync, plan.predicted.step_seconds, rel_tol=1e-9)
        assert max(forward, backward) < pace <= forward + backward
    assert paces(plan)[slowest(plan)].seconds == pace


def test_a_file_a_folder_and_a_saved_graph_give_one_plan(partita: Callable[..., str], tmp_path: Path) -> None:
    values: dict[str, Any] = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    graph = capture_config(values, name="model", dtype="bfloat16")
    save_graph(graph, tmp_path / "graph.json")
    options = ["--cluster", "2x2xa100-80gb", "--global-batch", "32", "--json"]
    plans = []
    for model in (folder, folder / "config.json", tmp_path / "graph.json"):
        plan = json.loads(partita("plan", model, *options))
        del plan["search"]["seconds"]
        plans.append(plan)
    assert plans[0] == plans[1] == plans[2]


def test_a_saved_graph_keeps_its_sequence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_graph(capture_config({"model_type": "gpt2", "n_positions": 64}, seq=32), tmp_path / "graph.json")
    words = ["plan", str(tmp_path / "graph.json"), "--cluster", "8xh200", "--global-batch", "32", "--seq", "64"]
    assert main(words) == 2
    assert "the graph was saved with seq=32, not 64" in capsys.readouterr().err


def test_held_decisions_and_the_memory_limit_reach_the_plan(partita: Callable[..., str]) -> None:
    fixes = [word for fix in ("tp=2", "pp=2", "recompute=full", "zero=1") for word in ("--fix", fix)]
    plan = json.loads(partita("plan", *LARGE, *fixes, "--memory-gib", "20", "--json"))
    assert [(stage["tp"], stage["dp"]) for stage in plan["stages"]] == [(2, 2), (2, 2)]
    assert {(s["zero"], s["recompute"]) for stage in plan["stages"] for s in stage["strategies"]} == {(1, "full")}
    assert max(plan["predicted"]["peak_bytes"].values()) <= 20 * 2**30


SMALL = ["gpt3-tiny", "--cluster", "1x4xa100-80gb", "--global-batch", "4", "--fix", "pp=2"]


def test_both_engines_prove_the_same_time(partita: Callable[..., str]) -> None:
    joint, miqp = (json.loads(partita("plan", *SMALL, "--json", *words)) for words in ((), ("--engine", "miqp")))
    assert (joint["search"]["engine"], miqp["search"]["engine"]) == ("joint", "miqp")
    assert joint["search"]["optimal"]
    assert miqp["search"]["optimal"]
    assert isclose(joint["search"]["bound_seconds"], miqp["search"]["bound_seconds"], rel_tol=1e-8)
    assert joint["search"]["considered"] == miqp["search"]["considered"] > joint["search"]["pruned"]


@pytest.mark.slow
def test_out_of_time_the_best_so_far_with_its_gap(tmp_path: Path) -> None:
    question = ["swin-56l", "--cluster", "16x8xa100-80gb", "--global-batch", "512", "--target", "partita"]
    # The first time that is enough for an answer is less than a tenth of what the proof takes.
    limits = ("1", "2", "3", "4", "6", "8", "12")
    file = str(tmp_path / "plan.json")
    assert any(main(["plan", *question, "--time-limit", limit, "-o", file]) == 0 for limit in limits)
    plan = plan_document(load_plan(file))
    search = plan["search"]
    assert not search["optimal"]
    assert 0 < search["bound_seconds"] < plan["predicted"]["step_seconds"]
    gap = 1 - search["bound_seconds"] / plan["predicted"]["step_seconds"]
    text = " ".join(found(load_plan(tmp_path / "plan.json"), None).split())
    assert f"stopped before the proof: no plan takes less than {search['bound_seconds']:.3g} s" in text
    assert f"under the formula, {gap:.1%} less" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "simplex"), '--engine simplex: no engine of that name has a plan for this; "joint" and "miqp"'),
        (("--time-limit", "0"), '"0" is no number of seconds'),
        (("--time-limit", "1e-9"), "no plan was found within 1e-09 seconds"),
        (("--plan-function", "interleaved", "--engine", "joint"), "leave out --engine and --time-limit"),
    ],
)
def test_engines_and_limits_that_cannot_be(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *SMALL[:-2], *words]) == 2
    assert said in capsys.readouterr().err


NAMED = ["gpt3-2.7b", "--cluster", "8xa100-80gb", "--global-batch", "64", "--plan-function", "interleaved"]


def test_a_plan_by_name_is_predicted_by_its_simulation(partita: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    text = partita("plan", *NAMED, "--fix", "chunks=2", "-o", path)
    plan = load_plan(path)
    assert (plan.target, plan.schedule, len(plan.stages)) == ("partita", "interleaved", 16)
    simulated = json.loads(partita("simulate", path, "--json"))
    assert isclose(simulated["step_seconds"], plan.predicted.step_seconds, rel_tol=1e-8)
    # A device that serves two stages holds both: so says the table, for each of them.
    rows = [line.split() for line in text.splitlines() if line.startswith("stage")][1:]
    sizes = [float(row[-2] if row[-1] == "heaviest" else row[-1]) for row in rows]
    assert sizes[:8] == sizes[8:] == [round(plan.predicted.peak_bytes[device] / 2**30, 2) for device in range(8)]


def test_a_plan_by_name_that_does_not_fit_is_no_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert main(["plan", *NAMED, "--memory-gib", "30", "-o", str(path)]) == 1
    assert "interleaved needs 36.80 GiB on device 0, and 30.00 GiB is there" in capsys.readouterr().err
    assert not path.exists()
