"""PipeDream's profiles: the optimum of its own optimizer, of a brute force on small graphs, and files that can't be."""

from __future__ import annotations

import json
from itertools import combinations
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from partita.cli.main import main
from partita.errors import Infeasible
from partita.planner.ideals import sample
from partita.workload import pipedream
from partita.workload.graph import Profiled
from partita.workload.pipedream import PipeDreamProblem, plan_pipedream
from partita.workload.pipedream_file import PipeDreamNode, read_pipedream
from tests.workload.graphs import cuts, random_edges
from tests.workload.refused import assert_refused

DATA = Path(__file__).parents[1] / "data" / "published" / "pipedream"
GOLDEN = json.loads((DATA / "golden.json").read_text())
NODE = "node1 -- ReLU -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=8.0"


@pytest.mark.parametrize(
    "golden",
    [
        pytest.param(golden, id=golden["name"], marks=[pytest.mark.slow] if "large" in golden["graph"] else [])
        for golden in GOLDEN
    ],
)
def test_the_slowest_stage_is_as_fast_as_in_the_authors_plan(golden: dict[str, Any]) -> None:
    graph = read_pipedream(str(DATA / golden["graph"]))
    problem = PipeDreamProblem(graph, golden["workers"], golden["bandwidth_bytes_per_s"], golden["replication_allowed"])
    found = plan_pipedream(problem)
    assert found.seconds_per_sample == pytest.approx(golden["seconds_per_minibatch"], rel=1e-12)
    assert found.optimal
    assert sum(stage.data_parallel for stage in found.stages) == golden["workers"]
    names = [name for stage in found.stages for name in stage.nodes]
    assert sorted(names) == sorted(node.name for node in graph.nodes)
    place = {name: index for index, stage in enumerate(found.stages) for name in stage.nodes}
    assert all(place[graph.nodes[low].name] <= place[graph.nodes[high].name] for low, high in graph.edges)


def brute(problem: PipeDreamProblem) -> float:
    nodes, best = problem.graph.nodes, inf
    for stages in cuts(len(nodes), problem.graph.edges, problem.workers):
        compute = [sum(nodes[node].seconds for node in stage) for stage in stages]
        weights = [sum(nodes[node].parameter_bytes for node in stage) for stage in stages]
        for ends in combinations(range(1, problem.workers), len(stages) - 1):
            copies = [high - low for low, high in zip((0, *ends), (*ends, problem.workers), strict=True)]
            if problem.replication or set(copies) == {1}:
                times = [
                    (c + 4 * (r - 1) / r * w / problem.bytes_per_second) / r
                    for c, w, r in zip(compute, weights, copies, strict=True)
                ]
                best = min(best, max(times))
    return best


def drawn(seed: int) -> PipeDreamProblem:
    random = Random(seed)
    nodes = random.randint(4, 6)
    made = tuple(
        PipeDreamNode(
            f"n{n}", "op", random.choice([0.0, random.random()]), random.choice([0.0, 5 * random.random()]), 0
        )
        for n in range(nodes)
    )
    graph = Profiled("drawn", made, tuple(random_edges(random, nodes, 0.35)))
    return PipeDreamProblem(graph, random.randint(1, 4), random.choice([1.0, 10.0, 100.0]), random.random() < 0.7)


@pytest.mark.parametrize("seed", range(25))
def test_no_cut_of_a_small_graph_is_faster(seed: int) -> None:
    problem = drawn(seed)
    found = plan_pipedream(problem)
    assert found.seconds_per_sample == pytest.approx(brute(problem), rel=1e-12)
    assert found.optimal


def test_a_plan_and_its_bound_where_not_all_sets_can_be_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read_pipedream(str(DATA / "gnmt.graph.txt"))
    problem = PipeDreamProblem(graph, 4, 1e9)
    best = plan_pipedream(problem).seconds_per_sample
    monkeypatch.setattr(pipedream, "rising", lambda nodes, edges: [sample(nodes, edges, k) for k in (80, 200)])
    some = plan_pipedream(problem)
    late = plan_pipedream(problem, deadline=0.0)
    for found in (some, late):
        assert (found.complete, found.optimal) == (False, False)
        assert 0 < found.bound_seconds <= best <= found.seconds_per_sample < 1.5 * best
    assert some.seconds_per_sample <= late.seconds_per_sample


def test_fewer_nodes_than_workers_that_are_not_replicated() -> None:
    graph = read_pipedream(str(DATA / "alexnet.graph.txt"))
    with pytest.raises(Infeasible, match="64 workers without replication need as many nodes, and there are 22"):
        plan_pipedream(PipeDreamProblem(graph, 64, 1e9, replication=False))


def test_inputs_and_items_that_nothing_reads_are_left_out_and_lists_are_summed(tmp_path: Path) -> None:
    names = ("Input0", "LSTM(2, 3)", "__getitem__(0)", "__getitem__(1)", "Add")
    lines = [NODE.replace("node1", f"node{k}").replace("ReLU", name) for k, name in enumerate(names)]
    lines[1] = lines[1].replace("activation_size=4.0", "activation_size=[4.0; 2.5]")
    (tmp_path / "g").write_text("\n".join([*lines, "\tnode0 -- node1", "\tnode1 -- node2", "\tnode2 -- node4"]))
    graph = read_pipedream(str(tmp_path / "g"))
    assert graph.edges == ((0, 1), (1, 2))
    assert graph.nodes[0] == PipeDreamNode("node1", "LSTM(2, 3)", 0.003, 8.0, 6.5)
    assert [node.name for node in graph.nodes] == ["node1", "node2", "node4"]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", ["no node in it"]),
        ("hello", ['line 1: "hello"', "NAME -- description -- forward_compute_time=…"]),
        (NODE.replace("1.0", "-1.0"), ['line 1, node "node1"', "forward_compute_time = -1.0", "0 or more"]),
        (NODE.replace("8.0", "nan"), ['node "node1"', "parameter_size = nan"]),
        (NODE.replace("4.0", "[1.0; x]"), ['node "node1"', "activation_size = ' x'"]),
        (NODE.replace("activation_size", "size"), ['node "node1"', "it has", "activation_size", "are needed"]),
        (f"{NODE}\n{NODE}", ["line 2", 'node "node1" is there twice']),
        (f"{NODE}\n\tnode1 - node2", ["line 2", "node5 -- node6"]),
        (f"{NODE}\n\tnode1 -- node2", ['line 2: edge "node1 -- node2"', 'no node "node2"']),
        (f"{NODE}\n\tnode1 -- node1", ["circle: node1 -> node1"]),
        (NODE.replace("ReLU", "Input"), ["nothing to plan"]),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, text: str, facts: list[str]) -> None:
    assert_refused(read_pipedream, tmp_path / "g.txt", text, facts)


def test_a_broken_line_is_named_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.txt").write_text(NODE.replace("2.0", "1e999"))
    words = ["plan", str(tmp_path / "g.txt"), "--format", "pipedream", "--devices", "2", "--bytes-per-second", "1e9"]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, "backward_compute_time = inf" in err) == ("", True)
