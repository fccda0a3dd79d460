"""Joint plans on nodes of unlike devices: each stage at the speed, and within the memory, of those it stands on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import pytest

from partita.cluster import Cluster, Device, Kind, Link, parse_cluster
from partita.cost.alike import alike
from partita.plan import Plan
from partita.planner.joint.build import build
from partita.planner.joint.engine import DEPTHS, Engine
from partita.planner.joint.formula import step_seconds
from partita.planner.joint.plan import solve
from partita.planner.joint.price import Pricing
from partita.planner.joint.search import best
from partita.planner.joint.space import Family
from partita.planner.joint.table import JointTable
from partita.problem import Problem
from partita.simulate import simulate
from tests.planner.conftest import chain
from tests.planner.joint.brute import answers
from tests.planner.joint.test_price import SEARCH, graph

GIB = 2**30
H, A, SMALL = "h100-80gb", "a100-80gb", "a100-40gb"
# What is captured: the samples of a copy may be divided over four devices.
SAMPLES = 4


def planned(model: str, cluster: Cluster, batch: int) -> Plan:
    """The formula's best for Partita's own runtime."""
    solved = solve(Problem(graph(model, SAMPLES), cluster, batch, target="partita"))
    assert solved.searched.optimal
    return solved.plan(solved.best)


def weakest_everywhere(cluster: Cluster) -> Cluster:
    return cluster.with_kinds(lambda kind: replace(kind, device=cluster.weakest()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "batch"),
    [(f"1x4x{H}+1x4x{A}", 64), (f"1x2x{SMALL}+1x2x{H}", 16)],
)
def test_the_faster_devices_have_more_blocks(text, batch):
    model = "gpt3-1.3b"
    cluster = parse_cluster(text)
    made = planned(model, cluster, batch)
    blocks = {cluster.device_at(stage.devices[0]).name: len(stage.blocks) for stage in made.stages}
    assert len(blocks) == len(made.stages) == 2
    assert blocks[H] > 1.5 * min(blocks.values())
    for stage in made.stages:
        assert len({cluster.device_at(device).name for device in stage.devices}) == 1
    for_the_weakest = planned(model, weakest_everywhere(cluster), batch)
    whole = graph(model, SAMPLES)
    seconds = [simulate(whole, plan, cluster).step_seconds for plan in (made, for_the_weakest)]
    assert seconds[0] < 0.9 * seconds[1]
    assert seconds[0] == pytest.approx(made.predicted.step_seconds, rel=0.03)


@pytest.mark.parametrize("text", [f"1x2x{H}+1x2x{SMALL}", pytest.param(f"1x2x{SMALL}+1x2x{H}", marks=pytest.mark.slow)])
def test_each_stage_fits_its_own_devices_and_may_fill_them(text):
    cluster = parse_cluster(text)
    made = planned("gpt3-6.7b", cluster, 16)
    found = simulate(graph("gpt3-6.7b", SAMPLES), made, cluster)
    most = {H: 0, SMALL: 0}
    for device, stated in made.predicted.peak_bytes.items():
        name = cluster.device_at(device).name
        most[name] = max(most[name], stated, found.peaks[device].memory.total)
    assert 40 * GIB < most[H] <= 80 * GIB
    assert most[SMALL] <= 40 * GIB
    assert {stage.memory.framework for stage in made.predicted.breakdown.stages} == {
        parse_cluster(f"1x{H}").device.framework_bytes
    }


def question(limits: tuple[int, int], speeds: tuple[float, float], memory_bytes: int | None = None) -> Pricing:
    """Three blocks on a node of one device and one of two of another kind."""
    three = chain([1.0, 2.0, 1.0], parameters=[2000, 1000, 500], width=50, kept=800)
    devices = [
        Device(f"of {limit} bytes", limit, {"float32": 1e30}, speed, framework_bytes=taken)
        for limit, speed, taken in zip(limits, speeds, (500, 70_000), strict=True)
    ]
    cluster = Cluster("test", (1, 2), tuple(Kind(device, Link(1e6), Link(1e6)) for device in devices))
    given = {"precision": "fp32", "target": "partita", "memory_bytes": memory_bytes}
    return Pricing(Problem(three, cluster, 6, **given), alike(three))


def tables(prices: Pricing, depths: Sequence[int] = (0,)) -> Iterator[tuple[Family, JointTable]]:
    for family in prices.families:
        for count in prices.micro_batches(family):
            yield from ((family, prices.table(family, count, "1f1b", depth)) for depth in depths)
            yield family, prices.table(family, count, "gpipe")


def least(prices: Pricing) -> float:
    """What the engine finds, which passes over most tables, held against all of them."""
    found = [each.seconds for _, table in tables(prices, DEPTHS) if (each := best(table)) is not None]
    engine = Engine(prices).search()
    assert engine.optimal
    assert (inf if engine.best is None else engine.best.seconds) == pytest.approx(min(found, default=inf), rel=1e-9)
    return min(found, default=inf)


@pytest.mark.slow
@pytest.mark.parametrize("speeds", [(3e9, 1e9), (1e9, 2e9)])
def test_the_best_of_all_answers_that_fit_each_device(speeds):
    """Looked at one by one, and judged by the plan's own memory against the devices' own limits."""
    between = 0
    for limits in [(150_000, 95_000), (60_000, 210_000), (90_000, 110_000)]:
        prices, all_of_them = question(limits, speeds), inf
        for family, table in tables(prices):
            wanted = inf
            for answer in answers(table):
                if step_seconds(table, answer) < wanted:
                    peaks = build(prices, family, table, answer, SEARCH).predicted.peak_bytes
                    if all(peak <= prices.problem.memory_limit_of((device,)) for device, peak in peaks.items()):
                        wanted = step_seconds(table, answer)
            found = best(table)
            assert (inf if found is None else found.seconds) == pytest.approx(wanted, rel=1e-9)
            all_of_them = min(all_of_them, wanted)
        # Neither what the smallest device allows everywhere, nor what the largest does.
        larger, own, smaller = (least(question(limits, speeds, limit)) for limit in (max(limits), None, min(limits)))
        assert larger <= own <= smaller
        assert own <= all_of_them
        between += larger < own < smaller
    assert between
