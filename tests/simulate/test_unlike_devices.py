"""Plans on nodes of unlike devices: every stage at the speed of the devices it stands on, and with their memory."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf

import pytest

from partita.cli.main import main
from partita.cli.simulate import fits
from partita.cluster import Cluster, Device, Kind, Link, parse_cluster
from partita.draft import drafted
from partita.errors import Infeasible
from partita.graph import Graph
from partita.plan import Plan
from partita.planner import parse_fix, plan
from partita.plugins.capture_huggingface import capture_config
from partita.plugins.library.hooks import partita_library
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config
from partita.simulate import simulate
from partita.simulate.costs import costs
from tests.planner.conftest import chain

H, A, SMALL = "h100-80gb", "a100-80gb", "a100-40gb"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_config(config("gpt3-tiny"), samples=1, seq=64, dtype="bfloat16", name="gpt3-tiny")


def device(name: str, speed: float, memory: int = 10**12) -> Device:
    """Moves so many bytes a second through its memory; whatever else it does takes no time."""
    return Device(name, memory, {"float32": 1e30}, speed)


def machine(*nodes: tuple[int, Device]) -> Cluster:
    """Nodes between which messages take no time."""
    counts, devices = zip(*nodes, strict=True)
    return Cluster("test", counts, tuple(Kind(each, Link(inf), Link(inf)) for each in devices))


def held(graph: Graph, cluster: Cluster, batch: int, **fix: object) -> Plan:
    """The planner's plan under what is held."""
    held = parse_fix(f"{name}={value}" for name, value in fix.items())
    return plan(Problem(graph, cluster, batch, precision="fp32", target="partita", fix=held))


@pytest.mark.parametrize("speeds", [(1e9, 1e9), (4e9, 1e9), (1e9, 4e9), (2e9, 1e9)])
@pytest.mark.parametrize(("f", "count"), [((1.0, 1.0), 4), ((2.0, 1.0), 4), ((1.0, 3.0), 6), ((2.0, 1.0), 1)])
def test_gpipe_takes_each_stage_at_its_own_speed(speeds, f, count):
    """Σf + (c − 1)·max f and the same for backward, with f of each stage by its own device; transfers and update: 0."""
    cluster = machine((1, device("first", speeds[0])), (1, device("second", speeds[1])))
    two = chain(list(f), parameters=[1, 1], width=1)
    made = held(two, cluster, count, pp=2, dp=1, tp=1, micro_batches=count, schedule="gpipe", recompute="none", zero=0)
    found = simulate(two, made, cluster)
    forward = [time * 1e9 / speed for time, speed in zip(f, speeds, strict=True)]
    for stage in (0, 1):
        assert found.costs.seconds[stage, "forward"] == pytest.approx(forward[stage], rel=1e-6)
        assert found.costs.seconds[stage, "backward"] == pytest.approx(2 * forward[stage], rel=1e-6)
    assert found.step_seconds == pytest.approx(3 * (sum(forward) + (count - 1) * max(forward)), rel=1e-6)


def test_a_stage_costs_what_it_does_where_all_devices_are_its_own():
    """Real presets: each stage of H100 + A100 as the same stage of two H100s, or of two A100s, in either order."""
    graph = capture_config(config("gpt3-1.3b"), samples=1, seq=2048, dtype="bfloat16", name="gpt3-1.3b")
    mixed = parse_cluster(f"2x{H}+2x{A}")
    only = {name: parse_cluster(f"2x2x{name}") for name in (H, A)}
    made = drafted(partita_library()["1f1b"], "1f1b", Problem(graph, mixed, 8, target="partita"), {"pp": 2})
    assert [stage.devices for stage in made.stages] == [(0, 1), (2, 3)]
    swapped = replace(made, stages=tuple(
        replace(stage, devices=other.devices) for stage, other in zip(made.stages, made.stages[::-1], strict=True)
    ))  # fmt: skip
    for one, names in ((made, (H, A)), (swapped, (A, H))):
        found = costs(graph, one, mixed)
        alone = {name: costs(graph, one, cluster) for name, cluster in only.items()}
        for stage, name in enumerate(names):
            for kind in ("forward", "backward"):
                assert found.seconds[stage, kind] == pytest.approx(alone[name].seconds[stage, kind], rel=1e-12)
    assert 1.5 * costs(graph, made, mixed).seconds[0, "forward"] < costs(graph, swapped, mixed).seconds[0, "forward"]


def test_copies_on_unlike_devices_wait_for_the_slowest():
    two = chain([1.0, 1.0], parameters=[1, 1], width=1)
    cluster = machine((1, device("first", 4e9)), (1, device("second", 1e9)))
    made = held(two, cluster, 4, pp=1, dp=2, tp=1, micro_batches=2, recompute="none", zero=0)
    assert simulate(two, made, cluster).costs.seconds[0, "forward"] == pytest.approx(2.0, rel=1e-6)


def test_collectives_and_messages_go_by_the_links_of_their_own_nodes(graph):
    slow, fast = Link(1e8, 1e-5), Link(1e10, 1e-6)
    kinds = [Kind(parse_cluster(f"1x{A}").device, near, Link(1e9)) for near in (fast, slow)]
    mixed = Cluster("mixed", (2, 2), tuple(kinds))
    made = drafted(partita_library()["1f1b"], "1f1b", Problem(graph, mixed, 8, target="partita"), {"pp": 2})
    found = costs(graph, made, mixed)
    for stage, kind in enumerate(kinds):
        alone = costs(graph, made, Cluster("one", (2, 2), (kind,) * 2))
        assert found.seconds[stage, "reduce"] == pytest.approx(alone.seconds[stage, "reduce"], rel=1e-12)
        assert found.collective_bytes[stage, "reduce"] == alone.collective_bytes[stage, "reduce"] > 0
    assert found.seconds[1, "reduce"] > 10 * found.seconds[0, "reduce"]


@pytest.mark.slow
def test_the_planner_counts_each_stage_where_it_stands(graph):
    """An A100 of 40 GB is an A100 of 80 GB with less memory and a slower one: mixed ones are between the two."""
    given = {"global_batch": 16, "target": "partita"}
    mixed, small, large = (
        plan(Problem(graph, parse_cluster(text), **given)) for text in (f"2x{A}+2x{SMALL}", f"2x2x{SMALL}", f"2x2x{A}")
    )
    assert large.predicted.step_seconds <= mixed.predicted.step_seconds <= small.predicted.step_seconds
    assert large.predicted.step_seconds < small.predicted.step_seconds
    assert len({mixed.problem, small.problem, large.problem}) == 3
    assert mixed.search.optimal
    assert any(f"The devices differ (2 {A} and 2 {SMALL})" in reason for reason in mixed.reasons)
    assert not any("The devices differ" in reason for reason in small.reasons)


def test_what_is_infeasible_says_what_is_missing_on_each_device():
    cluster = machine((1, device("large", 1e9, 3 * 2**30)), (2, device("small", 1e9, 2**30)))
    big = chain([1.0, 1.0], parameters=[300_000_000, 10], width=1)
    with pytest.raises(Infeasible) as caught:
        held(big, cluster, 4, pp=2, dp=1, tp=1)
    text = str(caught.value)
    # fp32 and Adam: 16 bytes of each parameter of the first stage, which has the large device.
    missing = 300_000_000 * 16 - 3 * 2**30
    assert text.startswith("nothing fits 1.00 GiB to 3.00 GiB a device on 3 devices (1 large and 2 small): each would")
    found = re.search(r"([\d,]+) bytes", text)
    assert int(found[1].replace(",", "")) == pytest.approx(missing, abs=100)
    assert "more on each device a plan exists: pp=2" in text
    assert "Stage 0 binds" in text


def test_memory_is_held_against_each_device_s_own():
    """The stage with all parameters on the larger device fits, on the smaller one it doesn't."""
    two = chain([1.0, 1.0], parameters=[100_000_000, 10], width=1)
    roomy = machine((1, device("large", 1e9)), (1, device("small", 1e9)))
    made = held(two, roomy, 4, pp=2, dp=1, tp=1, micro_batches=2, recompute="none", zero=0)
    peaks = [simulate(two, made, roomy).peaks[number].total for number in (0, 1)]
    assert peaks[0] > 2**30 > peaks[1]
    for limits, answer in (((2**31, 2**20), True), ((2**20, 2**31), False), ((2**31, 2**31), True)):
        cluster = machine(*((1, device(f"of {limit} bytes", 1e9, limit)) for limit in limits))
        assert fits(simulate(two, made, cluster), cluster) is answer


def test_the_command_line_names_unlike_devices(tmp_path, capsys):
    planned = str(tmp_path / "plan.json")
    words = ["gpt3-350m", "--cluster", f"1x{H}+1x{SMALL}", "--global-batch", "8", "--fix", "pp=2"]
    assert main(["plan", *words, "-o", planned]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"gpt3-350m on 1x{H}+1x{SMALL}:" in out
    assert f"The devices differ (1 {H} and 1 {SMALL}): every stage is counted as on the slowest of those" in out
    assert "not proven" not in out
    # The plan's file names its cluster, which is enough to simulate it.
    assert main(["simulate", planned, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    # The plan's prediction is its simulation.
    assert found["step_seconds"] == pytest.approx(found["predicted"]["step_seconds"], rel=1e-8)
    assert main(["simulate", planned]) == 0
    assert f"({SMALL}) has the least left" in " ".join(capsys.readouterr().out.split())


def test_a_plan_function_is_held_against_each_device_s_memory(capsys):
    """Each of two stages needs about 33 GiB: a V100 has half of that, the others have it."""
    words = ["plan", "gpt3-2.7b", "--global-batch", "16", "--precision", "fp16", "--plan-function", "1f1b"]
    assert main([*words, "--fix", "pp=2", "--cluster", f"1x{H}+1xv100-16gb"]) == 1
    assert "GiB on device 1 (v100-16gb), and 16.00 GiB is there" in capsys.readouterr().err
    assert main([*words, "--fix", "pp=2", "--cluster", f"1x{H}+1x{SMALL}"]) == 0
