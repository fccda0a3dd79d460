"""``partita plan --format``: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cli.main import main

DATA = Path(__file__).parents[1] / "data" / "published"
VGG = ["plan", str(DATA / "pipedream" / "vgg16.graph.txt"), "--format", "pipedream"]
BERT = ["plan", str(DATA / "piper" / "bert32a100.json"), "--format", "piper"]
ASKED = [*VGG, "--devices", "4", "--bytes-per-second", "1e9"]


def test_the_document_and_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*ASKED, "--json", "-o", str(tmp_path / "plan.json")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert set(made) == {"version", "format", "graph", "devices", "seconds_per_sample", "stages", "search"}
    assert (made["version"], made["format"], made["devices"]) == (1, "pipedream", 4)
    assert made["seconds_per_sample"] == pytest.approx(0.175732624, rel=1e-12)
    assert made["seconds_per_sample"] == max(stage["seconds"] for stage in made["stages"])
    assert sum(stage["data_parallel"] for stage in made["stages"]) == 4
    assert sum(stage["bytes"] for stage in made["stages"]) == pytest.approx(553430176)
    assert set(made["stages"][0]) == {
        "nodes", "on", "data_parallel", "tensor_parallel", "seconds", "bytes", "recomputed",
    }  # fmt: skip
    assert made["search"].pop("seconds") > 0
    assert made["search"] == {
        "optimal": True, "bound_seconds": made["seconds_per_sample"], "gap": 0.0, "sets": 41, "all_sets": True,
    }  # fmt: skip
    assert json.loads((tmp_path / "plan.json").read_text()) == made
    assert main(["explain", str(tmp_path / "plan.json")]) == 2
    assert f'a plan of the nodes of "{VGG[1]}", a pipedream profile' in capsys.readouterr().err


def test_of_piper_people_see_what_is_computed_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--devices", "8", "--memory-gib", "8", "--micro-batches", "64", "--bytes-per-second", "26843545600"]
    assert main([*BERT, *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on 8 devices: the slowest stage takes 0.165856 s a micro-batch" in out
    assert "stage nodes dp recomputed s a micro-batch GiB a device" in out
    assert "3 of 4" in out
    assert "among 43 downward-closed sets of nodes; optimal: no plan takes less than 0.165856 s" in out
    assert main([*BERT, *words, "--fix", "recompute=none"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the slowest stage takes 0.25975" in out
    assert "stage nodes tp s a micro-batch GiB a device" in out


def test_of_a_placement_people_see_where_each_part_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(DATA / "dnn-partitioning" / "OperatorGraphs" / "bert_l-3_inference.json")
    assert main(["plan", path, "--format", "dnn-partitioning"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on 4 devices: the slowest stage takes 0.0279186 s a sample" in out
    assert "downward-closed sets of nodes; optimal: no plan takes less than 0.0279186 s" in out
    fields = {"fpgaLatency": 1, "cpuLatency": 5, "isBackwardNode": 0}
    nodes = [{"id": n, "supportedOnFpga": n != 1, **fields} for n in range(2)]
    edges = [{"sourceId": 0, "destId": 1, "cost": 2}]
    document = {"maxFPGAs": 1, "maxCPUs": 1, "maxSizePerFPGA": 1, "nodes": nodes, "edges": edges}
    (tmp_path / "g.json").write_text(json.dumps(document))
    assert main(["plan", str(tmp_path / "g.json"), "--format", "dnn-partitioning"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "stage nodes on s a sample GiB" in out
    assert "0 0 accelerator 0.003 0 1 1 CPU 0.005 slowest 0" in out
    (tmp_path / "g.json").write_text(json.dumps({**document, "maxCPUs": 0}))
    assert main(["plan", str(tmp_path / "g.json"), "--format", "dnn-partitioning"]) == 1
    assert "no contiguous split over 1 accelerators of " in capsys.readouterr().err


def test_what_does_not_fit_is_said_with_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BERT, "--devices", "4", "--memory-gib", "8", "--micro-batches", "16"]) == 1
    out, err = capsys.readouterr()
    assert (out, "no plan on 4 devices fits 8 GiB a device; 8.11 GiB would do (--memory-gib)" in err) == ("", True)


def test_people_see_every_stage_and_what_is_proven(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DATA / "pipedream")
    assert main(["plan", "vgg16.graph.txt", *ASKED[2:]]) == 0
    out = capsys.readouterr().out
    assert "vgg16.graph.txt (pipedream) on 4 devices: the slowest stage takes 0.175733 s a minibatch" in out
    assert "0.175733 slowest" in out
    assert "among 41 downward-closed sets of nodes; optimal: no plan takes less than 0.175733 s" in out


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([*VGG[:-1], "pipedrem"], ['"pipedrem"', "Did you mean 'pipedream'"]),
        (VGG, ["--format pipedream needs --devices"]),
        ([*VGG, "--devices", "4"], ["needs --bytes-per-second"]),
        ([*VGG, "--devices", "0", "--bytes-per-second", "1"], ["--devices 0: 1 or more works"]),
        ([*VGG, "--devices", "2", "--bytes-per-second", "0"], ['"0" is no number of bytes a second', "25e9"]),
        ([*ASKED, "--memory-gib", "3"], ["--memory-gib is nothing that --format pipedream knows", "--devices"]),
        ([*ASKED, "--fix", "tp=2"], ["--fix tp=2", "dp=1 can be held"]),
        ([*BERT, "--fix", "recompute=full"], ["--fix recompute=full", "dp=1, tp=1 and recompute=none can be held"]),
        ([*BERT, "--micro-batches", "0"], ["--micro-batches 0: 1 or more works"]),
        ([*ASKED, "--cluster", "8xh200"], ["--cluster is of a model"]),
        ([*ASKED, "--precision", "bf16"], ["--precision is of a model"]),
        (["plan", "gpt3-tiny", "--bytes-per-second", "1e9"], ["go with --format"]),
    ],
)
def test_what_does_not_go_together(capsys: pytest.CaptureFixture[str], words: list[str], facts: list[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, [fact for fact in facts if fact not in err]) == ("", [])
