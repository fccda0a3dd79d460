"""Clusters whose nodes hold unlike devices: how they are written, what stands for several devices, which link binds."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from partita.cluster import Cluster, Device, Kind, Link, parse_cluster
from partita.cluster.unlike import slowest, weakest
from partita.cost.alike import alike
from partita.cost.block import BlockCost
from partita.cost.division import Division
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes, peak_flops
from partita.errors import ClusterError, InputError, PlanError
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.profile.measured import Measured
from partita.recipes.gpt3.sizes import config

H, A, SMALL = "h100-80gb", "a100-80gb", "a100-40gb"


@pytest.mark.parametrize(
    ("text", "nodes", "names"),
    [
        (f"1x8x{H}+2x8x{A}", (8, 8, 8), (H, A, A)),
        (f"8x{H}+2x8x{A}", (8, 8, 8), (H, A, A)),
        (f"2x{A}+4x{A}", (2, 4), (A, A)),
        (f"4x{A}+2x1x{H}+8x{A}", (4, 1, 1, 8), (A, H, H, A)),
    ],
)
def test_parts_are_nodes_in_their_order(text, nodes, names):
    cluster = parse_cluster(text)
    assert (cluster.name, cluster.nodes, cluster.devices) == (text, nodes, sum(nodes))
    each = [name for count, name in zip(nodes, names, strict=True) for _ in range(count)]
    assert [cluster.device_at(device).name for device in range(cluster.devices)] == each
    assert [device.name for device in cluster.different_devices()] == list(dict.fromkeys(names))
    assert cluster.local_ranks == tuple(local for count in nodes for local in range(count))


@pytest.mark.parametrize(
    ("text", "devices", "message"),
    [
        (f"8x{H}+8xa100-80", None, "there is no preset \"a100-80\". Did you mean 'a100-80gb'"),
        (f"8x{H}+{A}", None, f'says not how many devices "{A}" has; 8x{A} does'),
        (f"{H}+{A}", None, f'says not how many devices "{H}" has'),
        (f"{H}+8x{A}", 4, f"each part says how many devices it has, such as 4x{H}"),
        (f"8x{H}+8x{A}", 16, "leave out --devices 16"),
        (f"8x{H}+0x{A}", None, "0 is no count"),
        (f"8x{H}+2x3x4x{A}", None, "is no count"),
        (f"8x{H}+", None, "several of these joined by +"),
        (f"+8x{H}", None, "several of these joined by +"),
        (f"8x{H}++8x{H}", None, "several of these joined by +"),
        (f"900000x{H}+200000x{A}", None, "1,100,000 devices; 1,000,000 at most"),
        (f"8x{H}+2xcpu", None, f'"cpu" are processes on this machine, those of "{H}" are not'),
    ],
)
def test_parts_that_can_t_be_are_refused(text, devices, message):
    with pytest.raises(ClusterError) as caught:
        parse_cluster(text, devices)
    assert f'"{text}"' in str(caught.value)
    assert message in str(caught.value)


def test_nodes_of_processes_share_the_cores():
    cluster = parse_cluster("2xcpu+3xcpu")
    assert cluster.nodes == (2, 3)
    assert cluster.name.startswith("2xcpu+3xcpu on ")
    assert cluster.cores is not None


def written(tmp_path, document) -> str:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(document))
    return str(path)


def tier(speed: float):
    def figure(value: float):
        return {"value": value, "source": "made up"}

    return {"bytes_per_second": figure(speed), "latency_seconds": figure(0), "efficiency": figure(1)}


def test_a_file_says_what_each_node_is(tmp_path):
    cluster = parse_cluster(written(tmp_path, {
        "preset": A, "inter_node": tier(10e9), "node_bytes_per_second": 40e9,
        "nodes": [8, {"devices": 4, "count": 2, "preset": H, "memory_bytes": 10**10, "inter_node": tier(20e9)}, 2],
    }))  # fmt: skip
    assert cluster.nodes == (8, 4, 4, 2)
    assert cluster.kind_of == (0, 1, 1, 0)
    assert [(device.name, device.memory_bytes) for device in cluster.different_devices()] == [
        (A, 80 * 2**30), (H, 10**10)
    ]  # fmt: skip
    assert [kind.inter_node.bytes_per_second for kind in cluster.kinds] == [10e9, 20e9, 20e9, 10e9]
    assert {kind.node_bytes_per_second for kind in cluster.kinds} == {40e9}
    assert cluster.kinds[1].intra_node == parse_cluster(f"1x{H}").kind.intra_node


def test_what_a_short_form_says_a_file_says_too(tmp_path):
    found = parse_cluster(written(tmp_path, {
        "nodes": [{"devices": 8, "preset": H}, {"devices": 8, "count": 2, "preset": A}], "name": f"8x{H}+2x8x{A}"
    }))  # fmt: skip
    assert found == parse_cluster(f"8x{H}+2x8x{A}")


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ({"nodes": [8]}, ClusterError, "nodes.0.preset: the node names no preset"),
        ({"nodes": [{"devices": 8, "preset": H}, {"devices": 2}]}, ClusterError, "nodes.1.preset: the node names no"),
        ({"nodes": [{"devices": 8, "preset": "h10"}]}, ClusterError, 'nodes.0.preset: there is no preset "h10"'),
        ({"nodes": [8], "preset": "h10"}, ClusterError, 'machine.json: preset: there is no preset "h10"'),
        ({"nodes": [{"devices": 0, "preset": H}]}, InputError, "nodes.0.node.devices"),
        ({"nodes": [{"devices": 8, "preset": H, "counts": 2}]}, InputError, "nodes.0.node.counts"),
        ({"nodes": [{"preset": H}]}, InputError, "nodes.0.node.devices: field required"),
        (
            {"nodes": [{"devices": 8, "count": 10**6, "preset": H}]},
            ClusterError,
            "8,000,000 devices; 1,000,000 at most",
        ),
        ({"nodes": [8, {"devices": 2, "preset": "cpu"}], "preset": H}, ClusterError, "processes on this machine"),
        (
            {"nodes": [8, {"devices": 8, "preset": A}], "preset": H, "cores": 4},
            ClusterError,
            f'"{H}", "{A}" don\'t share',
        ),
    ],
)
def test_a_file_that_can_t_be_is_refused(tmp_path, document, error, message):
    path = written(tmp_path, document)
    with pytest.raises(error) as caught:
        parse_cluster(path)
    assert path in str(caught.value)
    assert message in str(caught.value)


def cost_of(device: Device, costs: tuple[BlockCost, ...], precision: str) -> list[tuple[float, float]]:
    return [cost.passes(device, peak_flops(device, precision), 1.0) for cost in costs]


@pytest.mark.parametrize(
    ("names", "slow", "memory"),
    [
        ((A, SMALL), SMALL, 40 * 2**30),
        (("h200", H), H, 80 * 2**30),
        (("v100-32gb", "v100-16gb"), "v100-16gb", 16 * 2**30),
        ((A, "v100-32gb"), "v100-32gb", 32 * 2**30),
        ((H, H), H, 80 * 2**30),
    ],
)
def test_where_one_is_the_slowest_at_everything_it_is_the_weakest(names, slow, memory):
    cluster = parse_cluster("+".join(f"1x{name}" for name in names))
    found = cluster.weakest()
    assert (found.name, found.memory_bytes) == (slow, memory)
    alone = parse_cluster(f"1x{slow}").device
    assert found.peak_flops == {key: alone.peak_flops[key] for key in found.peak_flops}
    for figure in ("matmul_efficiency", "attention_efficiency", "memory_bytes_per_second", "memory_efficiency"):
        assert getattr(found, figure) == getattr(alone, figure)


def test_a_large_device_is_the_slower_one_at_small_ops():
    """By the presets an H100 reaches 989 · 0.13 = 129 TFLOP/s in products of 1 to 16 GFLOP, an A100 312 · 0.6 = 187."""
    found = parse_cluster(f"1x{H}+1x{SMALL}").weakest()
    assert (found.name, found.memory_bytes) == (f"{H} and {SMALL}", 40 * 2**30)
    assert found.peak_flops["bfloat16"] == 312e12
    curve = dict(found.matmul_efficiency)
    assert curve[128] == 0.95
    assert curve[1] * 312e12 == pytest.approx(989e12 * 0.13)
    assert found.memory_bytes_per_second * found.memory_efficiency == 1555e9 * 0.9


def test_what_was_measured_goes_with_the_slowest():
    one, two = parse_cluster(f"1x{A}+1x{SMALL}").different_devices()
    profile = Measured("profile.json", ())
    assert weakest([one, replace(two, measured=profile)]).measured is profile
    assert weakest([replace(one, measured=profile), two]).measured is None


def test_only_the_devices_that_are_asked_for_count():
    cluster = parse_cluster(f"2xh200+2x{SMALL}+2x{A}")
    assert cluster.weakest((0, 1)) == cluster.device_at(0) == parse_cluster("1xh200").device
    assert cluster.weakest((3, 4)).name == SMALL
    assert cluster.weakest((1, 4)).name == f"h200 and {A}"
    assert cluster.weakest(range(6)) == cluster.weakest()
    question = Problem(capture(), cluster, 8)
    assert question.memory_limit == question.memory_limit_of((0, 2)) == 40 * 2**30
    assert question.memory_limit_of((0, 5)) == 80 * 2**30
    assert replace(question, memory_bytes=10**9).memory_limit_of((0, 5)) == 10**9


def test_who_computes_in_what_all_compute_in():
    found = parse_cluster(f"1x{A}+1xv100-32gb").weakest()
    assert "bfloat16" not in found.peak_flops
    with pytest.raises(PlanError, match="v100-32gb does not compute in bfloat16"):
        peak_flops(found, "bf16")


def capture():
    return capture_config(config("gpt3-tiny"), samples=1, seq=64, dtype="bfloat16", name="gpt3-tiny")


def test_no_op_is_faster_than_on_any_of_the_devices():
    """Devices of which each may be the slower one at something, by the costs of real blocks."""
    random = np.random.default_rng(7)
    graph = capture()
    groups = alike(graph)
    priced = BlockCosts(graph, groups, item_bytes(graph, "bf16"))
    costs = [priced.of(kind, Division()) for kind in groups.kinds]
    made_up = 0
    for _ in range(200):
        devices = []
        for number in range(int(random.integers(2, 4))):
            starts = sorted({0.0, *random.choice([1e-5, 1e-4, 1e-3, 1e-2], 2).tolist()}, reverse=True)
            curve = tuple((start, float(random.uniform(0.1, 1))) for start in starts)
            devices.append(Device(
                f"d{number}", int(random.integers(1, 9)) * 2**30,
                {"bfloat16": float(random.uniform(1e12, 9e12)), "float32": float(random.uniform(1e12, 9e12))},
                float(random.uniform(1e10, 1e12)), curve, float(random.uniform(0.1, 1)), float(random.uniform(0.5, 1)),
                float(random.choice([0.0, 1e-6, 1e-5])), int(random.integers(0, 3)) * 2**20,
            ))  # fmt: skip
        found = weakest(devices)
        made_up += " and " in found.name
        for precision in ("bf16", "fp32"):
            slow = cost_of(found, costs, precision)
            each = [cost_of(device, costs, precision) for device in devices]
            for block, phase in product(range(len(costs)), (0, 1)):
                assert slow[block][phase] >= max(one[block][phase] for one in each) * (1 - 1e-12)
        assert found.memory_bytes == min(device.memory_bytes for device in devices)
        assert found.framework_bytes == max(device.framework_bytes for device in devices)
    assert made_up > 50


def test_a_device_put_together_is_no_slower_than_it_must_be():
    """One is the slower one at products, the other at memory: what both do at once takes the larger of the two."""
    one = Device("one", 2**30, {"bfloat16": 1e12}, 4e9, ((1.0, 1.0), (0.0, 0.5)))
    two = Device("two", 2**31, {"bfloat16": 4e12}, 1e9, ((8.0, 0.5), (0.0, 0.125)))
    found = weakest([one, two])
    assert found.name == "one and two"
    assert found.peak_flops == {"bfloat16": 1e12}
    # FLOP/s at 10, 4 and 0.5 GFLOP: the least of 1e12 and 2e12, of 1e12 and 5e11, of 5e11 and 5e11.
    assert found.matmul_efficiency == ((8.0, 1.0), (1.0, 0.5), (0.0, 0.5))
    assert found.memory_bytes_per_second == 1e9
    assert found.memory_bytes == 2**30


def links() -> Cluster:
    """Nodes of 2 and 4 devices, whose links differ; the second one's devices share a port."""
    device = Device("d", 2**30, {"float32": 1.0}, 1.0)
    fast = Kind(device, Link(100.0, 1e-6), Link(20.0, 5e-6))
    slow = Kind(device, Link(50.0, 2e-6, 0.5), Link(40.0, 4e-6), node_bytes_per_second=32.0)
    return Cluster("test", (2, 4, 2), (fast, slow, fast))


@pytest.mark.parametrize(
    ("crosses", "devices", "speed", "latency"),
    [
        (False, (0, 1), 100.0, 1e-6),
        (False, (2, 3), 25.0, 2e-6),
        (False, (0, 1, 6), 100.0, 1e-6),
        (False, None, 25.0, 2e-6),
        (True, (0, 6), 20.0, 5e-6),
        (True, (2, 3), 8.0, 4e-6),
        (True, (0, 2), 8.0, 5e-6),
        (True, None, 8.0, 5e-6),
    ],
)
def test_the_slower_of_two_ways_binds(crosses, devices, speed, latency):
    found = links().link(crosses, devices)
    assert (found.reached_bytes_per_second, found.latency_seconds) == (speed, latency)


@pytest.mark.parametrize(
    ("devices", "beside", "speed"),
    [
        ((0, 1, 6, 7), 2, 40.0),
        ((0, 1, 6, 7), 4, 80.0),
        ((0, 1, 6, 7), 8, 100.0),  # no more than passes inside the node
        ((2, 3), 2, 16.0),
        ((2, 3), 4, 25.0),
        ((0, 1, 2, 3), 2, 16.0),
    ],
)
def test_a_ring_s_ports_are_those_of_each_node(devices, beside, speed):
    assert links().link(True, devices, beside).reached_bytes_per_second == speed


def test_the_slowest_link_is_the_one_that_reaches_least():
    found = slowest([Link(100.0, 0.1, 0.1), Link(20.0, 0.3)])
    assert found == Link(100.0, 0.3, 0.1)


@pytest.mark.parametrize(
    ("devices", "nodes", "last"),
    [(1, (1,), H), (4, (4,), H), (6, (4, 2), A), (8, (4, 2, 2), A), (11, (4, 2, 2, 2, 1), A)],
)
def test_a_cluster_keeps_its_first_nodes_and_grows_by_the_last_kind(devices, nodes, last):
    found = parse_cluster(f"4x{H}+2x2x{A}").resized(devices)
    assert found.nodes == nodes
    assert found.device_at(devices - 1).name == last
    assert found.device_at(0).name == H


def test_each_device_is_part_of_the_digest():
    graph = capture()
    texts = [f"2x4x{H}", f"4x{H}+4x{A}", f"4x{A}+4x{H}", f"2x4x{A}", f"8x{H}"]
    clusters = [replace(parse_cluster(text), name="one name") for text in texts]
    digests = [Problem(graph, cluster, 8).digest for cluster in clusters]
    assert len(set(digests)) == len(texts)
    again = replace(parse_cluster(f"4x{H}+4x{A}"), name="one name")
    assert Problem(graph, again, 8).digest == digests[1]


def test_devices_of_one_makeup_have_one_price():
    cluster = parse_cluster(f"4x{H}+2x4x{A}+2x{A}")
    assert cluster.makeup((0, 1)) == cluster.makeup((3,)) == {(0, 4)}
    assert cluster.makeup((4, 11)) == cluster.makeup((5,)) == {(1, 4)}
    assert cluster.makeup((0, 12)) == {(0, 4), (1, 2)}
    assert cluster.makeup() == {(0, 4), (1, 4), (1, 2)}
    assert cluster.weakest((4, 11)) is cluster.weakest((12, 13))
    assert parse_cluster(f"4x4x{A}").makeup((0,)) == {(0, 4)}
