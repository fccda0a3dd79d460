"""``partita simulate`` and ``compare``: what they print and write, their exit statuses, and what they refuse."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.cli.model import load_model
from partita.cli.planned import cluster_of
from partita.cluster import parse_cluster
from partita.plan import load_plan, save_plan
from partita.planner import parse_fix
from partita.planner import plan as planned
from partita.problem import Problem

ON = ["--cluster", "2x4xa100-80gb", "--global-batch", "32"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the plan's file has."""
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    held = ["--fix", "pp=4", "--fix", "dp=2", "--fix", "micro_batches=8"]
    assert main(["plan", "gpt3-tiny", *ON, *held, "-o", str(file)]) == 0
    return file.read_text()


@pytest.fixture
def plan(written: str, tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(written)
    return file


def test_people_see_every_stage_beside_the_prediction(partita: Callable[..., str], tmp_path: Path) -> None:
    """Of the formula's best, whose prediction isn't its simulation."""
    held = parse_fix(["pp=4", "dp=2", "micro_batches=8"])
    problem = Problem(load_model("gpt3-tiny", None, "bfloat16"), parse_cluster(ON[1]), int(ON[3]), fix=held)
    found = planned(problem)
    save_plan(found, plan := tmp_path / "plan.json")
    text = partita("simulate", plan)
    words = " ".join(text.split())
    assert "gpt3-tiny on 2x4xa100-80gb: 32 samples a step, schedule 1f1b, 8 micro-batches simulated step " in words
    for stage in found.stages:
        devices = f"{stage.devices[0]}-{stage.devices[-1]}"
        # In the table of seconds and in that of memory.
        assert words.count(f"{stage.name} {devices} ") == 2
    assert "why the step differs from the prediction - The queues take " in words


def test_the_document_agrees_with_itself_and_with_the_plan(partita: Callable[..., str], plan: Path) -> None:
    found, predicted = json.loads(partita("simulate", plan, "--json")), load_plan(plan).predicted
    assert found == json.loads(partita("simulate", plan, "--json"))
    assert found["predicted"]["step_seconds"] == predicted.step_seconds
    parts = found["difference"]["parts"]
    assert sum(parts.values()) == pytest.approx(found["difference"]["seconds"])
    assert found["step_seconds"] - predicted.step_seconds == pytest.approx(found["difference"]["seconds"])
    assert found["samples_per_second"] == pytest.approx(32 / found["step_seconds"])
    assert found["fits"] is True
    for device in found["devices"]:
        number = device["device"]
        seconds = device["compute_seconds"] + device["collective_seconds"] + device["waiting_seconds"]
        assert seconds == pytest.approx(found["step_seconds"])
        assert device["peak"]["bytes"] == sum(device["peak"]["items"].values()) == found["peak_bytes"][str(number)]
        assert device["peak"]["bytes"] - device["peak"]["items"]["buffers"] == predicted.peak_bytes[number]
    assert found["tasks"] > 8 * 8 * 2


def test_the_trace_has_every_task_once_and_no_two_at_a_time_on_a_track(
    partita: Callable[..., str], plan: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    assert f"written: {file}" in partita("simulate", plan, "--trace", file).replace("\n", " ")
    document = json.loads(partita("simulate", plan, "--json", "--trace", file))
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == document["tasks"]
    tracks = defaultdict(list)
    for event in slices:
        tracks[event["pid"], event["tid"]].append(event)
    for found in tracks.values():
        for before, after in pairwise(sorted(found, key=lambda event: (event["ts"], event["ts"] + event["dur"]))):
            assert before["ts"] + before["dur"] <= after["ts"] * (1 + 1e-9)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert named.keys() >= tracks.keys()
    assert {"compute", "sends", "receives"} <= set(named.values())
    for key, found in tracks.items():
        kinds = {"sends": {"send"}, "receives": {"receive"}}.get(
            named[key].split()[0], {"forward", "backward", "reduce", "update"}
        )
        assert {event["cat"] for event in found} <= kinds
    # The counter's highest sum is the peak, the last slice's end the step.
    for device, peak in document["peak_bytes"].items():
        held = [sum(e["args"].values()) for e in events if e["ph"] == "C" and e["pid"] == int(device)]
        assert max(held) == peak
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(1e6 * document["step_seconds"])


def test_what_does_not_fit_is_a_no(partita: Callable[..., str], plan: Path, tmp_path: Path) -> None:
    least = min(load_plan(plan).predicted.peak_bytes.values())
    small = tmp_path / "small.json"
    small.write_text(json.dumps({"nodes": [4, 4], "preset": "a100-80gb", "memory_bytes": least - 1}))
    text = partita("simulate", plan, "--cluster", small, status=1)
    assert "It does not fit: devices 0-7 need more than they have." in " ".join(text.split())
    assert json.loads(partita("simulate", plan, "--cluster", small, "--json", status=1))["fits"] is False


def test_devices_that_share_their_way_out_take_longer(partita: Callable[..., str], plan: Path, tmp_path: Path) -> None:
    """Four devices need 100 GB/s together; what is not narrower than that changes nothing."""
    for name, more in (
        ("own", {}),
        ("wide", {"node_bytes_per_second": 1e11}),
        ("narrow", {"node_bytes_per_second": 1e8}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({"nodes": [4, 4], "preset": "a100-80gb", **more}))
    own, wide, narrow = (
        json.loads(partita("simulate", plan, "--cluster", tmp_path / f"{name}.json", "--json"))["step_seconds"]
        for name in ("own", "wide", "narrow")
    )
    assert own == wide < narrow


@pytest.mark.parametrize(
    ("name", "cores"), [("4xcpu on 2 cores", 2), ("1x4xcpu on 1 core", 1), ("4x8xa100-80gb", None)]
)
def test_the_plan_s_cluster_is_read_from_its_name(plan: Path, name: str, cores: int | None) -> None:
    from dataclasses import replace

    found = cluster_of(replace(load_plan(plan), cluster=name), "plan.json", None, None)
    assert (found.name, found.cores) == (name, cores)


@pytest.mark.slow
def test_compare_ranks_every_kind_that_fits(partita: Callable[..., str]) -> None:
    words = ["compare", "gpt3-tiny", "--cluster", "1x4xa100-80gb", "--global-batch", "16"]
    found = json.loads(partita(*words, "--json"))
    names = [row["name"] for row in found["plans"]]
    assert found["best"] == names[0]
    assert {"partita", "data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3", "tensor parallel", "1F1B", "GPipe"} <= set(names)
    steps = [row["step_seconds"] for row in found["plans"]]
    assert steps == sorted(steps)
    for row in found["plans"]:
        assert sum(row["parts"].values()) == pytest.approx(row["step_seconds"])
        assert row["dp"] * row["tp"] * row["pp"] == 4
    by_name = {row["name"]: row for row in found["plans"]}
    # The planner's own is at least as good as any kind.
    assert by_name["partita"]["step_seconds"] == steps[0]
    assert by_name["data parallel"]["bubble_fraction"] == pytest.approx(0, abs=1e-9)
    assert by_name["1F1B"]["bubble_fraction"] > 0
    # dp × tp × pp on four devices: no three of them are larger than 1.
    assert {row["name"] for row in found["left_out"]} == {"1F1B × tensor × data", "GPipe × tensor × data"}
    text = " ".join(partita(*words).split())
    assert f"why {names[0]} wins" in text
    assert "not in the table - 1F1B × tensor × data: none for 4 devices, 6 blocks, global batch 16 (" in text


@pytest.mark.slow
def test_compare_says_what_does_not_fit(partita: Callable[..., str]) -> None:
    words = ["compare", "gpt3-6.7b", "--cluster", "8xa100-80gb", "--global-batch", "64"]
    found = json.loads(partita(*words, "--json"))
    reasons = {row["name"]: row["reason"] for row in found["left_out"]}
    assert reasons["data parallel"].startswith("does not fit: needs 101.92")
    assert reasons["data parallel"].endswith(" GiB a device or more, 80.00 GiB is there")


@pytest.mark.slow
def test_compare_of_a_plan_that_divides_samples(partita: Callable[..., str]) -> None:
    """The model has been captured with one; the plan is simulated on as many as it asks for, as simulate does."""
    words = ["mixture-tiny", "--cluster", "1x2xa100-80gb", "--global-batch", "2", "--target", "partita"]
    held = ["--fix", "ep=2", "--fix", "pp=1"]
    made = json.loads(partita("plan", *words, *held, "--json"))["predicted"]
    (row,) = json.loads(partita("compare", *words, *held, "--json"))["plans"]
    assert (row["name"], row["step_seconds"]) == ("partita", pytest.approx(made["step_seconds"]))


def test_compare_of_files_is_what_simulate_says(partita: Callable[..., str], plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    partita("plan", "gpt3-tiny", *ON, "--fix", "dp=8", "-o", other)
    alone = {str(file): json.loads(partita("simulate", file, "--json")) for file in (plan, other)}
    found = json.loads(partita("compare", plan, other, "--json"))
    assert {row["name"]: row["step_seconds"] for row in found["plans"]} == {
        name: document["step_seconds"] for name, document in alone.items()
    }
    assert {row["name"]: row["peak_bytes"] for row in found["plans"]} == {
        name: max(document["peak_bytes"].values()) for name, document in alone.items()
    }
    assert found["left_out"] == []
    assert len(found["reasons"]) == 1
    assert " takes " in found["reasons"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "none.json"], "none.json: no such file"),
        (
            ["simulate", "plan.json", "--model", "gpt3-tony"],
            "there is no model \"gpt3-tony\". Did you mean 'gpt3-tiny'",
        ),
        (
            ["simulate", "plan.json", "--model", "gpt3-125m"],
            'the plan has 6 blocks, model "gpt3-125m" has 14; not in both: ',
        ),
        (
            ["simulate", "plan.json", "--cluster", "4xa100-80gb"],
            "the plan uses device 4, cluster 4xa100-80gb has devices",
        ),
        (
            ["simulate", "plan.json", "--devices", "4"],
            "--devices 4 goes with --cluster cpu; the plan was made for 2x4x",
        ),
        (
            ["simulate", "odd.json"],
            'odd.json: the plan\'s model "mine" is neither a recipe nor a file here; --model MODEL',
        ),
        (
            ["simulate", "odd.json", "--model", "gpt3-tiny"],
            'the plan was made for cluster "ours", which names no preset',
        ),
        (["simulate", "plan.json", "--trace", "no/trace.json"], "no/trace.json: can't be written"),
        (["compare", "plan.json", "gpt3-tiny"], '"gpt3-tiny" is no plan\'s file; compare plans with plans'),
        (["compare", "plan.json", "--seq", "4"], "plans state their own problem; only --model, --cluster, --devices"),
        (
            ["compare", "gpt3-tiny", "gpt3-6.7b"],
            "2 models (gpt3-tiny, gpt3-6.7b): one is compared with the grid at a time",
        ),
        (
            ["compare", "gpt3-tiny"],
            "gpt3-tiny is a model and no plan: --cluster and --global-batch must say what it is",
        ),
        (["compare", "gone.json", *ON], "gone.json: no such file"),
    ],
)
def test_wrong_input_is_said(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    document = json.loads(plan.read_text())
    (tmp_path / "odd.json").write_text(json.dumps(document | {"model": "mine", "cluster": "ours"}))
    if words == ["simulate", "odd.json"]:
        words += ["--cluster", "2x4xa100-80gb"]
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
