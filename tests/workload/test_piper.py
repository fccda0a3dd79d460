"""Piper's inputs: the optimum of the authors' solver, of a brute force on small graphs, and files that can't be."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations, product
from math import ceil, inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from partita.cli.main import main
from partita.errors import Infeasible, InputError
from partita.planner.ideals import sample
from partita.workload import piper, piper_sums
from partita.workload.answer import WorkloadStage
from partita.workload.asked import Asked
from partita.workload.graph import Profiled
from partita.workload.piper import FORMAT, HELD, plan_piper
from partita.workload.piper_file import Degree, PiperFile, PiperNode, Way, read_piper
from partita.workload.piper_search import PiperProblem
from tests.workload.graphs import cuts, random_edges
from tests.workload.refused import assert_refused

DATA = Path(__file__).parents[1] / "data" / "published" / "piper"
GOLDEN = json.loads((DATA / "golden.json").read_text())
SLOW = {"bert32-k512-m8-n1920", "resnet-k8-m4-n7680", "resnet-k16-m2-n7680", "resnet-k64-m1-n7680"}


def asked(golden: Mapping[str, Any]) -> Asked:
    switches = ("data_parallel_allowed", "tensor_parallel_allowed", "recompute_allowed")
    fix = tuple(decision for decision, name in zip(HELD, switches, strict=True) if not golden[name])
    return Asked(
        golden["devices"], golden["memory_bytes"], golden["microbatches"], golden["bandwidth_bytes_per_s"], fix
    )


@pytest.mark.parametrize(
    "golden",
    [
        pytest.param(golden, id=golden["name"], marks=[pytest.mark.slow] if golden["name"] in SLOW else [])
        for golden in GOLDEN
    ],
)
def test_the_slowest_stage_is_as_fast_as_in_the_authors_plan(golden: dict[str, Any]) -> None:
    path = str(DATA / golden["graph"])
    if not golden["feasible"]:
        with pytest.raises(Infeasible, match=f"{golden['memory_bytes'] / 2**30:g} GiB a device; [0-9.]+ GiB"):
            FORMAT.solve(path, asked(golden), inf)
        return
    found, devices = FORMAT.solve(path, asked(golden), inf)
    assert found.seconds_per_sample == pytest.approx(golden["tps"], rel=1e-9)
    assert (found.optimal, found.complete, devices) == (True, True, golden["devices"])
    assert sum(stage.data_parallel * stage.tensor_parallel for stage in found.stages) <= devices
    assert max(stage.bytes for stage in found.stages) <= golden["memory_bytes"] * (1 + 1e-12)
    file = read_piper(path)
    stated = PiperFile(
        file.graph, file.edge_bytes, devices, golden["memory_bytes"], golden["bandwidth_bytes_per_s"],
        golden["microbatches"],
    )  # fmt: skip
    agrees(stated, found.stages)


def cost(file: PiperFile, members: Iterable[int], d: int, t: int, s: int, again: Iterable[int]) -> tuple[float, float]:
    """Seconds and bytes of a stage with d copies of t devices, and s copies with all later ones, as defined."""
    own = {n: file.graph.nodes[n].degrees[t] for n in members}
    ways = [kind.recomputed if n in again else kind.vanilla for n, kind in own.items()]
    sent = 0.0
    for (low, high), size in zip(file.graph.edges, file.edge_bytes, strict=True):
        if low in own and high not in own:
            sent += 2 * (size + own[low].leaving.get(file.graph.nodes[high].id, 0.0))
        if high in own and low not in own:
            sent += 2 * (size + own[high].entering.get(file.graph.nodes[low].id, 0.0))
    weights = sum(kind.parameter_bytes for kind in own.values())
    seconds = (sum(way.seconds for way in ways if way) + sent / file.bytes_per_second) / d
    seconds += 4 * (d - 1) / d * weights / file.micro_batches / file.bytes_per_second
    return seconds, sum(way.flight_bytes * ceil(s / d) + way.fixed_bytes for way in ways if way)


def agrees(file: PiperFile, stages: tuple[WorkloadStage, ...]) -> None:
    """Every node is in one stage, no edge leads back, and the stages' seconds and bytes are as defined."""
    number = {node.name: n for n, node in enumerate(file.graph.nodes)}
    place = {number[name]: index for index, stage in enumerate(stages) for name in stage.nodes}
    assert sorted(place) == sorted(number.values())
    assert all(place[low] <= place[high] for low, high in file.graph.edges)
    for index, stage in enumerate(stages):
        members, again = ([number[name] for name in names] for names in (stage.nodes, stage.recomputed))
        s = sum(later.data_parallel for later in stages[index:])
        defined = cost(file, members, stage.data_parallel, stage.tensor_parallel, s, again)
        assert (stage.seconds, stage.bytes) == pytest.approx(defined, rel=1e-12)


def brute(problem: PiperProblem) -> float:
    """The least seconds over every cut, the copies and devices of every stage, and the way of every node."""
    file, best = problem.file, inf
    nodes = file.graph.nodes
    for stages in cuts(len(nodes), file.graph.edges, file.devices):
        for shapes in product(product(problem.copies, problem.degrees), repeat=len(stages)):
            if sum(d * t for d, t in shapes) > file.devices or sum(d for d, _ in shapes) > file.micro_batches:
                continue
            if any(t not in nodes[n].degrees for (_, t), stage in zip(shapes, stages, strict=True) for n in stage):
                continue
            slowest = 0.0
            for index, (stage, (d, t)) in enumerate(zip(stages, shapes, strict=True)):
                s = sum(d for d, _ in shapes[index:])
                may = [n for n in stage if problem.recompute and nodes[n].degrees[t].recomputed]
                choices = (set(some) for count in range(len(may) + 1) for some in combinations(may, count))
                costs = [cost(file, stage, d, t, s, again) for again in choices]
                slowest = max(
                    slowest, min((seconds for seconds, size in costs if size <= file.memory_bytes), default=inf)
                )
            best = min(best, slowest)
    return best


def drawn(seed: int) -> PiperProblem:
    random = Random(seed)
    count = random.randint(3, 5)
    edges = random_edges(random, count, 0.5)

    def way() -> Way:
        return Way(random.choice([1.0, 2.0, random.random()]), random.randint(0, 4), random.randint(0, 6))

    def degree(n: int) -> Degree:
        beside = [{str(m): random.random() for m in range(count) if random.random() < 0.5} for _ in range(2)]
        return Degree(way(), way() if random.random() < 0.8 else None, random.randint(0, 4), *beside)

    nodes = tuple(
        PiperNode(str(n), f"n{n}", {t: degree(n) for t in (1, 2) if t == 1 or random.random() < 0.7})
        for n in range(count)
    )
    file = PiperFile(
        Profiled("drawn", nodes, tuple(edges)), tuple(random.random() for _ in edges),
        random.randint(1, 4), random.randint(8, 40), random.choice([1.0, 10.0]), random.choice([1, 2, 4, 6]),
    )  # fmt: skip
    return PiperProblem(file, random.random() < 0.8, random.random() < 0.8, random.random() < 0.8)


@pytest.mark.parametrize("seed", range(40))
def test_no_plan_of_a_small_graph_is_faster(seed: int) -> None:
    problem = drawn(seed)
    best = brute(problem)
    if best == inf:
        with pytest.raises(Infeasible):
            plan_piper(problem)
        return
    found = plan_piper(problem)
    assert found.seconds_per_sample == pytest.approx(best, rel=1e-9)
    assert found.optimal
    assert max(stage.bytes for stage in found.stages) <= problem.file.memory_bytes
    agrees(problem.file, found.stages)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_computed_again_is_chosen_exactly(seed: int) -> None:
    random = Random(seed)
    count = random.randint(1, 9)
    extra = np.array([random.choice([0.0, 1.0, random.random()]) for _ in range(count)])
    flight, fixed = (np.array([float(random.randint(-2, 5)) for _ in range(count)]) for _ in range(2))
    y = random.randint(1, 3)
    saved = flight * y + fixed
    need = random.uniform(0.3, 0.9) * max(1.0, saved[saved > 0].sum())
    subsets = [list(some) for size in range(count + 1) for some in combinations(range(count), size)]
    enough = [extra[some].sum() for some in subsets if saved[some].sum() >= need]
    order = np.argsort(np.where(saved > 0, extra / np.maximum(saved, 1e-9), inf), kind="stable")
    low, high = np.zeros(1, np.uint64), np.array([2**count - 1], np.uint64)
    for budget in (min(enough, default=1.0) + 1e-9, min(enough, default=1.0) - 1e-9):
        taken = np.zeros(count, np.bool_)
        answer = piper_sums.choose(
            low, high, order, extra, flight, fixed, y, need, budget, np.empty(count, np.int64), taken
        )
        assert answer == int(bool(enough) and min(enough) <= budget)
        assert not answer or (saved[taken].sum() >= need and extra[taken].sum() <= budget)


def test_a_plan_and_its_bound_where_not_all_sets_can_be_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    file = read_piper(str(DATA / "bert32a100.json"))
    problem = PiperProblem(replace(file, devices=8, memory_bytes=8 * 2**30, micro_batches=64))
    best = plan_piper(problem).seconds_per_sample
    monkeypatch.setattr(piper, "rising", lambda nodes, edges: [sample(nodes, edges, k) for k in (nodes, 2 * nodes)])
    some = plan_piper(problem)
    late = plan_piper(problem, deadline=0.0)
    for found in (some, late):
        assert (found.complete, found.optimal) == (False, False)
        assert 0 < found.bound_seconds <= best <= found.seconds_per_sample
    assert some.seconds_per_sample < 1.5 * best
    # Only the first plan there is.
    assert some.seconds_per_sample < late.seconds_per_sample
    # No plan among the few ideals that are always gone through.
    monkeypatch.setattr(piper, "rising", lambda nodes, edges: [sample(nodes, edges, nodes)] * 2)
    with pytest.raises(TimeoutError):
        plan_piper(PiperProblem(replace(problem.file, memory_bytes=2**30)), deadline=0.0)


def test_out_of_time_the_best_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(DATA / "bert32a100.json"), "--format", "piper", "--devices", "256"]
    assert main([*words, "--memory-gib", "8", "--time-limit", "1e-9"]) == 0
    assert "not proven: no plan takes less than" in capsys.readouterr().out
    assert main([*words, "--memory-gib", "0.5", "--time-limit", "1e-9"]) == 2
    assert "no plan was found in 1e-09 s" in capsys.readouterr().err


SMALL: dict[str, Any] = {
    "maxDevices": 2, "maxMemoryPerDevice": 100, "bandwidth": 10, "mbsInBatch": 4,
    "nodes": [
        {"id": 7, "TMPCs": {"1": [{
            "id": "vanilla", "timePerSample": 3, "parameterSize": 1, "memoryUsageA": 1, "memoryUsageB": 2,
            "syncTimeFw": {}, "syncTimeBw": {"8": 5},
        }]}},
        {"id": 8, "name": "head", "TMPCs": {"2": [{
            "id": "vanilla", "timePerSample": 1, "parameterSize": 1, "memoryUsageA": 1, "memoryUsageB": 2,
        }]}},
    ],
    "edges": [{"sourceId": 7, "destId": 8, "communicationCost": 2}],
}  # fmt: skip


def test_a_small_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps(SMALL))
    file = read_piper(str(tmp_path / "g.json"))
    assert [node.id for node in file.graph.nodes] == ["7", "8"]
    assert (file.edge_bytes, file.graph.edges) == ((2.0,), ((0, 1),))
    assert file.graph.nodes[0] == PiperNode("7", "7", {1: Degree(Way(3, 1, 2), None, 1, {}, {"8": 5})})
    assert (file.graph.nodes[1].name, file.devices, file.micro_batches) == ("head.8", 2, 4)
    with pytest.raises(Infeasible, match="from the degrees that the nodes have, whatever the memory; more devices"):
        FORMAT.solve(str(tmp_path / "g.json"), Asked(), inf)
    with pytest.raises(InputError, match=r"node head.8 has no way of running on 1 of 2 devices; .* degrees 2"):
        FORMAT.solve(str(tmp_path / "g.json"), Asked(fix=("tp=1",)), inf)
    # 3 + 2 * (2 + 5) / 10 and 1 + 2 * 2 / 10.
    found, _ = FORMAT.solve(str(tmp_path / "g.json"), Asked(devices=3), inf)
    assert [stage.seconds for stage in found.stages] == pytest.approx([4.4, 1.4])


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda d: d.pop("bandwidth"), ["top level", '"bandwidth" is missing']),
        (lambda d: d.update(maxDevices=0), ["maxDevices = 0: a whole number of 1 or more"]),
        (lambda d: d.update(mbsInBatch=1.5), ["mbsInBatch = 1.5"]),
        (lambda d: d.update(nodes=[]), ["nodes is empty"]),
        (lambda d: d.update(nodes={}), ["nodes: a list is needed, found dict"]),
        (lambda d: d["nodes"].append(d["nodes"][0]), ["node 7 is there twice"]),
        (lambda d: d["nodes"][0].pop("id"), ["node 1 of the list", '"id" is missing']),
        (lambda d: d["nodes"][0].update(TMPCs={}), ["node 7: TMPCs"]),
        (lambda d: d["nodes"][0]["TMPCs"].update({"two": []}), ['node 7: TMPCs has "two"']),
        (lambda d: d["nodes"][0]["TMPCs"].update({"2": []}), ["node 7, degree 2: ways none", "'vanilla'"]),
        (lambda d: way(d).update(timePerSample=-1), ["node 7, degree 1, vanilla: timePerSample = -1"]),
        (lambda d: way(d).update(memoryUsageB="much"), ["memoryUsageB = 'much'"]),
        (lambda d: way(d)["syncTimeBw"].update({"8": None}), ["syncTimeBw[8] = None"]),
        (lambda d: way(d).pop("parameterSize"), ['"parameterSize" is missing']),
        (
            lambda d: d["nodes"][0]["TMPCs"]["1"].append({**way(d), "id": "activation recomp", "parameterSize": 2}),
            ["node 7, degree 1: its two ways differ in parameterSize"],
        ),
        (lambda d: d["edges"][0].update(destId=9), ["edge 1 of the list: 7 -> 9: there is no node 9"]),
        (lambda d: d["edges"].append(d["edges"][0]), ["edge 2 of the list: 7 -> 8 is there twice"]),
        (lambda d: d["edges"].append({"sourceId": 8, "destId": 7, "communicationCost": 0}), ["circle"]),
        (lambda d: d["edges"][0].update(communicationCost=float("nan")), ["communicationCost = nan"]),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, change: Callable[[dict[str, Any]], None], facts: list[str]) -> None:
    document = copy.deepcopy(SMALL)
    change(document)
    assert_refused(read_piper, tmp_path / "g.json", json.dumps(document), facts)


def way(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["nodes"][0]["TMPCs"]["1"][0]
    return found
