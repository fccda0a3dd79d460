"""Inputs of dnn-partitioning: the optimum of the authors' programme, experts' splits, a brute force, bad files."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from partita.errors import Infeasible
from partita.planner.ideals import ideals, sample
from partita.workload import placement
from partita.workload.asked import Asked
from partita.workload.placement import FORMAT, PlacementProblem, Tables
from partita.workload.placement_file import read_placement
from partita.workload.placement_sums import least_load
from partita.workload.placement_units import units
from tests.workload.refused import assert_refused

DATA = Path(__file__).parents[1] / "data" / "published" / "dnn-partitioning"
GOLDEN = json.loads((DATA / "golden.json").read_text())
SLOW = {"OperatorGraphs/bert_l-3_training.json"}


def load(document: Mapping[str, Any], own: set[int], cpu: bool) -> float:
    """Milliseconds of a device with these nodes, as defined; infinite where they can't be there."""
    nodes = [node for node in document["nodes"] if node["id"] in own]
    if cpu:
        return float(sum(node["cpuLatency"] for node in nodes))
    if not all(node["supportedOnFpga"] for node in nodes):
        return inf
    if sum(node.get("size", 0) for node in nodes) > document["maxSizePerFPGA"]:
        return inf
    cost = {
        edge["sourceId"]: edge["cost"] for edge in document["edges"]
        if (edge["sourceId"] in own) != (edge["destId"] in own)
    }  # fmt: skip
    return float(sum(node["fpgaLatency"] for node in nodes) + sum(cost.values()))


@pytest.mark.parametrize(
    "golden",
    [
        pytest.param(golden, id=golden["input"], marks=[pytest.mark.slow] if golden["input"] in SLOW else [])
        for golden in GOLDEN
    ],
)
def test_the_largest_load_is_that_of_the_authors_split_and_never_over_an_experts(golden: dict[str, Any]) -> None:
    found, devices = FORMAT.solve(str(DATA / golden["input"]), Asked(), inf)
    assert found.seconds_per_sample * 1e3 == pytest.approx(golden["max_load_ms"], rel=1e-12)
    assert found.optimal
    document = json.loads((DATA / golden["input"]).read_text())
    assert devices == document["maxFPGAs"] + document["maxCPUs"]
    where = {int(name.rpartition(".")[2]): k for k, stage in enumerate(found.stages) for name in stage.nodes}
    assert sorted(where) == sorted(node["id"] for node in document["nodes"])
    loads = [
        load(document, {n for n in where if where[n] == k}, stage.on == "CPU") for k, stage in enumerate(found.stages)
    ]
    assert [stage.seconds * 1e3 for stage in found.stages] == pytest.approx(loads, rel=1e-12)
    assert sum(stage.on == "CPU" for stage in found.stages) <= document["maxCPUs"]
    assert sum(stage.on == "accelerator" for stage in found.stages) <= document["maxFPGAs"]
    together = defaultdict(set)
    for node in document["nodes"]:
        together[node.get("colorClass", node["name"])].add(where[node["id"]])
    assert max(map(len, together.values())) == 1
    if "expert" in golden:
        split = json.loads((DATA / golden["expert"]).read_text())
        hand = [
            load(document, set(part["nodes"]), kind == "cpus") for kind in ("cpus", "fpgas") for part in split[kind]
        ]
        assert max(hand) == pytest.approx(golden["expert_max_load_ms"], rel=1e-12)
        assert found.seconds_per_sample * 1e3 < max(hand)


def drawn(seed: int) -> dict[str, Any]:
    """A small graph: forward nodes, some of one colour; backward ones with mirrored edges, some without partners."""
    random = Random(seed)
    count = random.randint(3, 5)
    forward = [(low, high) for high in range(count) for low in range(high) if random.random() < 0.45]
    partners = {n for n in range(count) if random.random() < 0.5}
    edges = [*forward, *((10 + high, 10 + low) for low, high in forward if {low, high} <= partners)]
    edges += [(n, 10 + n) for n in partners if random.random() < 0.5]
    colours = {n: random.choice([n, n, n, random.randrange(count)]) for n in range(count)}
    colours |= {10 + n: colours[n] for n in partners}
    if partners and random.random() < 0.5:
        edges += [(10 + random.choice(sorted(partners)), 20)] + [(20, 21)] * random.randint(0, 1)
        colours |= {n: n for n in (20, 21) if any(n in edge for edge in edges)}
    nodes = []
    for n, colour in colours.items():
        quick = random.random() < 0.3
        nodes.append(
            {
                "id": n, "supportedOnFpga": int(quick or random.random() < 0.9), "isBackwardNode": n >= 10,
                "fpgaLatency": 0 if quick else random.randint(1, 5),
                "cpuLatency": 0 if quick else random.randint(2, 20),
                "size": 0 if quick else random.randint(0, 4), "colorClass": colour,
            }
        )  # fmt: skip
    cost = {n: random.choice([0, 0.5, 3]) for n in colours}
    return {
        "maxFPGAs": random.randint(1, 3), "maxCPUs": random.randint(0, 2), "maxSizePerFPGA": random.randint(6, 14),
        "nodes": nodes,
        "edges": [{"sourceId": low, "destId": high, "cost": cost[low]} for low, high in edges],
    }  # fmt: skip


def brute(document: Mapping[str, Any]) -> float:
    """The least largest load over all assignments of colours to devices in an order without a forward edge back.

    Backward edges of colours that have no forward node must not lead to a later device.
    """
    colour = {node["id"]: node["colorClass"] for node in document["nodes"]}
    backward = {node["id"] for node in document["nodes"] if node["isBackwardNode"]}
    partnered = {colour[n] for n in colour if n not in backward}
    pairs = [(edge["sourceId"], edge["destId"]) for edge in document["edges"]]
    order = [(colour[low], colour[high]) for low, high in pairs if high not in backward]
    order += [
        (colour[high], colour[low]) for low, high in pairs
        if low in backward and not {colour[low], colour[high]} <= partnered
    ]  # fmt: skip
    names, best = sorted(set(colour.values())), inf
    for count in range(1, min(len(names), document["maxFPGAs"] + document["maxCPUs"]) + 1):
        for places in product(range(count), repeat=len(names)):
            place = dict(zip(names, places, strict=True))
            if len(set(places)) < count or any(place[low] > place[high] for low, high in order):
                continue
            parts = [{n for n in colour if place[colour[n]] == k} for k in range(count)]
            costs = [(load(document, part, False), load(document, part, True)) for part in parts]
            for kinds in product((0, 1), repeat=count):
                if sum(kinds) <= document["maxCPUs"] and count - sum(kinds) <= document["maxFPGAs"]:
                    best = min(best, max(cost[kind] for cost, kind in zip(costs, kinds, strict=True)))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_no_split_of_a_small_graph_is_better(seed: int, tmp_path: Path) -> None:
    document = drawn(seed)
    (tmp_path / "g.json").write_text(json.dumps(document))
    best = brute(document)
    if best == inf:
        with pytest.raises(Infeasible, match="no contiguous split over"):
            FORMAT.solve(str(tmp_path / "g.json"), Asked(), inf)
        return
    found, _ = FORMAT.solve(str(tmp_path / "g.json"), Asked(), inf)
    assert found.seconds_per_sample * 1e3 == pytest.approx(best, rel=1e-12)
    assert found.optimal


def test_a_plan_and_its_bound_where_not_all_sets_can_be_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(DATA / "OperatorGraphs" / "bert_l-3_inference.json")
    best = FORMAT.solve(path, Asked(), inf)[0].seconds_per_sample
    monkeypatch.setattr(placement, "rising", lambda nodes, edges: [sample(nodes, edges, k) for k in (nodes, 2 * nodes)])
    some, late = (FORMAT.solve(path, Asked(), deadline)[0] for deadline in (inf, 0.0))
    for found in (some, late):
        assert (found.complete, found.optimal) == (False, False)
        assert 0 < found.bound_seconds <= best <= found.seconds_per_sample < 2 * best
    assert some.seconds_per_sample <= late.seconds_per_sample


@pytest.mark.parametrize("seed", range(20))
def test_a_unit_bounds_the_load_of_whichever_device_has_it(seed: int, tmp_path: Path) -> None:
    document = drawn(seed)
    (tmp_path / "g.json").write_text(json.dumps(document))
    file = read_placement(str(tmp_path / "g.json"))
    problem = PlacementProblem(file, file.accelerators, file.memory_bytes)
    made = problem.units
    tables = Tables.of(problem, ideals(len(made.members), made.edges))
    number = [int(node.name) for node in file.graph.nodes]
    for unit, slow in enumerate(problem.table[:, 1]):
        least = inf
        for low, high in product(range(len(tables.closed)), repeat=2):
            small, large = set(tables.closed.members(low)), set(tables.closed.members(high))
            if small <= large and unit in large - small:
                own = {number[n] for other in large - small for n in made.members[other]}
                least = min(least, load(document, own, False) / 1e3)
        found = least_load(unit, tables.closed.masks, *tables[1:])
        assert found == pytest.approx(least, rel=1e-12)
        if file.cpus:
            assert min(slow, found) <= brute(document) / 1e3 * (1 + 1e-12)


def test_units_are_colours_circles_and_idle_nodes_with_their_one_neighbour(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps(SMALL))
    file = read_placement(str(tmp_path / "g.json"))
    made = units(file)
    names = [{file.graph.nodes[n].name for n in members} for members in made.members]
    # b and d share a colour and so take c between them; the weight goes with a, which alone reads it.
    assert names == [{"w.4", "a.0"}, {"b.1", "c.2", "d.3"}]
    assert (made.edges, made.moving) == (((0, 1),), {(0, 1): 0.002})


SMALL: dict[str, Any] = {
    "maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 10,
    "nodes": [
        {
            "id": n, "name": "abcdw"[n], "supportedOnFpga": True, "isBackwardNode": False,
            "fpgaLatency": (1, 1, 1, 1, 0)[n], "cpuLatency": (9, 9, 9, 9, 0)[n], "size": 2,
            "colorClass": (0, 1, 2, 1, 4)[n],
        }
        for n in range(5)
    ],
    "edges": [
        {"sourceId": low, "destId": high, "cost": 2} for low, high in ((0, 1), (1, 2), (2, 3), (4, 0))
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda d: d.pop("maxCPUs"), ["top level", '"maxCPUs" is missing']),
        (lambda d: d.update(maxFPGAs=2.5), ["maxFPGAs = 2.5: a whole number"]),
        (lambda d: d.update(nodes=[]), ["nodes is empty"]),
        (lambda d: d.update(edges=None), ["edges: a list is needed, found NoneType"]),
        (lambda d: d["nodes"].append(d["nodes"][0]), ["node 0 is there twice"]),
        (lambda d: d["nodes"][1].pop("fpgaLatency"), ["node 1", '"fpgaLatency" is missing']),
        (lambda d: d["nodes"][1].update(cpuLatency=-2), ["node 1: cpuLatency = -2: a finite number of 0 or more"]),
        (lambda d: d["nodes"][1].update(size="1"), ["node 1: size = '1'"]),
        (lambda d: d["nodes"][1].update(isBackwardNode=2), ["isBackwardNode = 2: true, false, 1 and 0 work"]),
        (lambda d: d["edges"][0].update(destId=9), ["edge 1 of the list: 0 -> 9: there is no node 9"]),
        (lambda d: d["edges"][0].pop("cost"), ["edge 1 of the list", '"cost" is missing']),
        (
            lambda d: d["edges"].append({"sourceId": 0, "destId": 2, "cost": 3}),
            ["edge 5 of the list: 0 -> 2: cost = 3, and 2 on another edge out of 0; one number"],
        ),
        (lambda d: d["edges"].append({"sourceId": 3, "destId": 0, "cost": 2}), ["circle: ", "a.0 -> "]),
        (lambda d: d["nodes"][0].update(isBackwardNode=1), ["edge a.0 -> b.1 leads from backward to forward"]),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, change: Callable[[dict[str, Any]], None], facts: list[str]) -> None:
    document = copy.deepcopy(SMALL)
    change(document)
    assert_refused(read_placement, tmp_path / "g.json", json.dumps(document), facts)
