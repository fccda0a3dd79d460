"""How clusters are written and refused; presets and their sources; the links of groups."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from partita.cluster import Cluster, load_preset, parse_cluster, preset_names
from partita.cluster.placement import beside
from partita.cluster.presets import preset_files
from partita.errors import ClusterError, InputError


@pytest.mark.parametrize(
    ("text", "devices", "nodes"),
    [
        ("4x8xa100-80gb", None, (8, 8, 8, 8)),
        ("8xh200", None, (8,)),
        ("1xv100-16gb", None, (1,)),
        ("3x1xh100-80gb", None, (1, 1, 1)),
        ("cpu", 4, (4,)),
        ("h200", 2, (2,)),
    ],
)
def test_what_is_written_is_what_there_is(text, devices, nodes):
    cluster = parse_cluster(text, devices)
    assert cluster.nodes == nodes
    assert cluster.devices == sum(nodes)
    assert cluster.device.name == text.split("x")[-1]


@pytest.mark.parametrize(
    ("text", "devices", "message"),
    [
        ("4x8xa100-80", None, "no preset \"a100-80\". Did you mean 'a100-80gb'"),
        ("8xa10000", None, 'no preset "a10000"'),
        ("b300", None, 'no preset "b300"'),
        ("0xh200", None, "0 is no count"),
        ("4x0xh200", None, "0 is no count"),
        ("-2xh200", None, "-2 is no count"),
        ("2x4x8xh200", None, "is no count"),
        ("1.5xh200", None, '"1.5" is no count'),
        ("xh200", None, "how many devices"),
        ("4x8x", None, "a cluster is written"),
        ("", None, "a cluster is written"),
        ("32", None, "a cluster is written"),
        ("cpu", None, "how many devices"),
        ("cpu", 0, "0 is no count"),
        ("cpu", -1, "-1 is no count"),
        ("8xh200", 8, "leave out --devices 8"),
        ("99999999xh200", None, "1 to 1,000,000"),
        ("99999x99999xh200", None, "1,000,000 at most"),
    ],
)
def test_nonsense_is_refused(text, devices, message):
    with pytest.raises(ClusterError) as caught:
        parse_cluster(text, devices)
    assert message in str(caught.value)
    assert not text or f'"{text}"' in str(caught.value) or "preset" in str(caught.value)


def test_every_figure_of_every_preset_has_a_source():
    assert preset_names() == ["a100-40gb", "a100-80gb", "cpu", "h100-80gb", "h200", "v100-16gb", "v100-32gb"]

    def figures(value):
        if isinstance(value, dict) and "value" not in value:
            assert value
            for part in value.values():
                if not isinstance(part, str):
                    figures(part)
        else:
            assert len(value["source"]) > 3

    for name in preset_names():
        assert load_preset(name).name == name
        figures(json.loads(preset_files()[name].read_text()))


def test_a_preset_s_figures():
    device = parse_cluster("8xa100-80gb").device
    assert (device.memory_bytes, device.peak_flops["bfloat16"]) == (80 * 2**30, 312e12)
    assert parse_cluster("8xh200").device.memory_bytes == 150109880320


def write(tmp_path, document) -> str:
    path = tmp_path / "machine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ({"nodes": [], "preset": "h200"}, InputError, "nodes"),
        ({"nodes": [2, 0], "preset": "h200"}, InputError, "nodes.1"),
        ({"nodes": [2, -4], "preset": "h200"}, InputError, "nodes.1"),
        ({"nodes": ["two"], "preset": "h200"}, InputError, "nodes.0"),
        ({"nodes": [2], "preset": "h2000"}, ClusterError, "Did you mean 'h200'"),
        ({"nodes": [2], "preset": "h200", "nods": 3}, InputError, "nods"),
        ({"nodes": [2], "preset": "h200", "memory_bytes": 0}, InputError, "memory_bytes"),
        ({"nodes": [10**6, 10**6], "preset": "h200"}, ClusterError, "1,000,000 at most"),
        ('{"nodes": [2],\n "preset" "h200"}', InputError, "line 2, column 11"),
    ],
)
def test_a_broken_cluster_file_is_refused(tmp_path, document, error, message):
    path = write(tmp_path, document)
    with pytest.raises(error) as caught:
        parse_cluster(path)
    assert message in str(caught.value)
    assert path in str(caught.value)


def figure(value):
    return {"value": value, "source": "measured here"}


def mixed(tmp_path) -> Cluster:
    def tier(speed):
        return {"bytes_per_second": figure(speed), "latency_seconds": figure(0), "efficiency": figure(1)}

    return parse_cluster(write(tmp_path, {
        "nodes": [2, 4], "preset": "a100-40gb", "intra_node": tier(100e9), "inter_node": tier(10e9)
    }))  # fmt: skip


def test_c29_nodes_with_different_numbers_of_devices(tmp_path):
    cluster = mixed(tmp_path)
    assert cluster.devices == 6
    assert cluster.local_ranks == (0, 1, 0, 1, 2, 3)
    assert cluster.link(False).reached_bytes_per_second == 10 * cluster.link(True).reached_bytes_per_second


@pytest.mark.parametrize(
    ("nodes", "dp", "tp", "pp", "tp_beside", "dp_beside"),
    [
        ((8, 8), 16, 1, 1, 1, 8),  # one ring through both nodes, over eight ports
        ((8, 8), 2, 8, 1, 8, 1),  # each of eight rings has one device in a node
        ((8, 8), 1, 16, 1, 8, 1),
        ((8, 8), 4, 4, 1, 4, 2),
        ((4, 4), 4, 2, 1, 2, 2),
        ((4, 2), 6, 1, 1, 1, 2),  # the node with fewer ports says how fast it is
        ((8, 8), 8, 1, 2, 1, 8),
    ],
)
def test_a_ring_has_the_ports_of_its_members(nodes, dp, tp, pp, tp_beside, dp_beside):
    a100 = parse_cluster("2x8xa100-80gb")
    cluster = replace(a100, nodes=nodes)
    on = np.array(cluster.node_of).reshape(pp, dp, tp)
    assert (beside(on.reshape(-1, tp)), beside(on.swapaxes(1, 2).reshape(-1, dp))) == (tp_beside, dp_beside)
    port, inside = (link.reached_bytes_per_second for link in (cluster.kind.inter_node, cluster.kind.intra_node))
    for members in (tp_beside, dp_beside):
        # Of B bytes a ring of n sends 2(n − 1)/n·B over each hop; a node's members share a hop between nodes.
        assert cluster.link(True, beside=members).reached_bytes_per_second == pytest.approx(min(members * port, inside))
        assert cluster.link(True, beside=members).latency_seconds == cluster.kind.inter_node.latency_seconds
        assert cluster.link(False, beside=members) == cluster.link(False)
    together = port * max(nodes) / 2
    shared = cluster.with_kinds(lambda kind: replace(kind, node_bytes_per_second=together))
    assert shared.link(True, beside=2).bytes_per_second == pytest.approx(together * 2 / max(nodes))


def test_a_cluster_grows_by_devices_or_by_nodes():
    assert parse_cluster("4xh200").resized(6).nodes == (6,)
    assert parse_cluster("2x4xh200").resized(14).nodes == (4, 4, 4, 2)
