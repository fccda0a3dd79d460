"""The graph of stages in ``partita explain`` and ``simulate``: of towers a table and a sentence, of a chain nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from partita.cli.binding import paces
from partita.cli.stage_graph import document, of_model, size, text
from partita.cluster import parse_cluster
from partita.plan import load_plan, save_plan
from partita.simulate.stage_graph import forms, sentence, stage_graph
from tests.towers import plan, saved, towers

GIB = 2**30
SHOWN = """\
stage graph   reads                            path   held by graph   as chain   GiB by graph   as chain
────────────────────────────────────────────────────────────────────────────────────────────────────────
stage0        -                                   3               3          4          1.020      1.021
stage1        -                                   2               2          3          1.019      1.020
stage2        stage0 (1 MiB)                      2               2          2          1.020      1.020
stage3        stage1 (1 MiB), stage2 (1 MiB)      1               1          1          1.020      1.020
  - The stages form a graph, whose longest path has 3 of 4: by it (kfkb k=1) they hold 3, 2, 2 and 1 micro-batches and
    at most 1.02 GiB, as a chain (1f1b) 4, 3, 2 and 1 and 1.02 GiB; the step takes 3.16 ms with a bubble of 42.0%, as a
    chain 3.16 ms with 42.0%.
"""


@pytest.mark.parametrize("verb", ["explain", "simulate"])
@pytest.mark.parametrize("schedule", ["kfkb", "1f1b"])
def test_people_see_both_forms(partita: Callable[..., str], tmp_path: Path, verb: str, schedule: str) -> None:
    assert f"\n\n{SHOWN}\n" in partita(verb, saved(tmp_path, schedule))


@pytest.mark.parametrize("verb", ["explain", "simulate"])
def test_the_document_has_layers_edges_and_both_forms(partita: Callable[..., str], tmp_path: Path, verb: str) -> None:
    file = saved(tmp_path)
    found = json.loads(partita(verb, file, "--json"))["stage_graph"]
    both = forms(towers(), load_plan(file), parse_cluster("1x4xa100-80gb"))
    assert list(found) == ["schedule", "longest_path", "layers", "edges", "by_graph", "as_chain"]
    assert found["schedule"] == "kfkb k=1"
    assert found["longest_path"] == ["stage0", "stage2", "stage3"]
    assert found["layers"] == [["stage0"], ["stage1", "stage2"], ["stage3"]]
    assert [(edge["from"], edge["to"], edge["values"], edge["bytes_per_micro_batch"]) for edge in found["edges"]] == [
        ("stage0", "stage2", ["right0"], 2**20), ("stage1", "stage3", ["left"], 2**20),
        ("stage2", "stage3", ["right1"], 2**20),
    ]  # fmt: skip
    for key, form, schedule, held in (
        ("by_graph", both.graph.predicted, "kfkb k=1", [3, 2, 2, 1]),
        ("as_chain", both.chain.predicted, "1f1b", [4, 3, 2, 1]),
    ):
        assert found[key] == {
            "schedule": schedule, "in_flight": held,
            "stage_bytes": [stage.memory.total for stage in form.breakdown.stages],
            "peak_bytes": {str(device): peak for device, peak in form.peak_bytes.items()},
            "step_seconds": form.step_seconds, "bubble_fraction": form.bubble_fraction,
        }  # fmt: skip


@pytest.mark.parametrize("verb", ["explain", "simulate"])
def test_a_chain_says_nothing_more(partita: Callable[..., str], tmp_path: Path, verb: str) -> None:
    file = saved(tmp_path, "1f1b", (("right0",), ("left", "right1"), ("head",)))
    assert "graph" not in partita(verb, file).replace(str(tmp_path), "")
    assert "stage_graph" not in json.loads(partita(verb, file, "--json"))


def test_another_schedule_is_not_compared(partita: Callable[..., str], tmp_path: Path) -> None:
    file = saved(tmp_path, "gpipe")
    said = partita("simulate", file)
    assert "\nstage2        stage0 (1 MiB)                      2           8\n" in said
    assert "  - The stages form a graph, whose longest path has 3 of 4.\n" in said
    found = json.loads(partita("simulate", file, "--json"))["stage_graph"]
    assert (found["by_graph"], found["as_chain"]) == (None, None)


def test_a_reason_is_not_said_again(partita: Callable[..., str], tmp_path: Path) -> None:
    file = saved(tmp_path)
    found = load_plan(file)
    both = forms(towers(), found, parse_cluster("1x4xa100-80gb"))
    save_plan(replace(found, reasons=(sentence(stage_graph(towers(), found), both),)), file)
    said = partita("explain", file)
    assert said.count("The stages form a graph") == 1
    assert f"\n\n{SHOWN.splitlines()[0]}\n" in said


def test_without_the_model_explain_says_why_there_is_no_graph(partita: Callable[..., str], tmp_path: Path) -> None:
    file = saved(tmp_path)
    save_plan(replace(load_plan(file), model="mine"), file)
    why = 'the plan\'s model "mine" is neither a recipe nor a file here'
    assert f"the graph of stages isn't shown: {file}: {why}" in " ".join(partita("explain", file).split())
    assert why in json.loads(partita("explain", file, "--json"))["stage_graph"]["why_not"]
    # A chain for all that is known.
    save_plan(replace(load_plan(saved(tmp_path, "1f1b")), model="mine"), file)
    assert "graph" not in partita("explain", file).replace(str(tmp_path), "")


def test_without_the_cluster_or_in_very_long_steps_the_forms_are_not_simulated() -> None:
    graph, made = towers(), plan(towers())
    cluster = parse_cluster("1x4xa100-80gb")
    unknown = of_model(graph, made, None, "the plan was made for ours")
    assert unknown.forms is None
    assert unknown.why == "Not simulated beside a chain: the plan was made for ours"
    long = replace(made, stages=tuple(replace(stage, micro_batches=6000) for stage in made.stages))
    found = of_model(graph, long, cluster, "")
    assert found.forms is None
    assert found.why.startswith("Not simulated beside a chain: a step has 48,000 turns;")
    assert document(found, long)["stage_graph"]["as_chain"] is None
    assert len(text(found, long, ())) == 4


def test_a_plan_of_another_model_has_no_graph() -> None:
    made = plan(towers())
    found = of_model(towers(), replace(made, stages=made.stages[:3]), parse_cluster("1x4xa100-80gb"), "")
    assert found.stages is None
    assert "the plan has 3 blocks" in found.why


def test_the_round_trip_goes_by_the_graph() -> None:
    """Stage 1 has the head alone behind it: stage 2 is no part of its way."""
    made = plan(towers())
    costs = made.predicted.breakdown.stages
    own = [
        cost.forward_seconds + cost.backward_seconds + cost.transfer_forward_seconds + cost.transfer_backward_seconds
        for cost in costs
    ]
    found = paces(made, stage_graph(towers(), made))
    assert [pace.seconds for pace in found] == pytest.approx(
        [(own[0] + own[2] + own[3]) / 3, (own[1] + own[3]) / 2, (own[2] + own[3]) / 2, own[3]]
    )
    assert {pace.binds for pace in found} == {"round trip"}
    assert {pace.binds for pace in paces(made)} == {"computation"}
    # A step can't be shorter than its micro-batches at the slowest stage's pace.
    assert max(pace.seconds for pace in found) * 8 <= made.predicted.step_seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1000, "1000 bytes"), (1536, "1.5 KiB"), (2**20, "1 MiB"), (2.5 * GIB, "2.5 GiB")],
)
def test_bytes_of_messages(count: float, words: str) -> None:
    assert size(count) == words
