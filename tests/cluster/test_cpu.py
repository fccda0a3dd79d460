"""Processes of one machine: the cores that they share, what that does to times, and what a plan says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from partita.cluster import Cluster, Device, Link, parse_cluster
from partita.cost.block import BlockCost
from partita.errors import ClusterError
from partita.graph import Block, Graph, Op, Tensor, check
from partita.planner import plan
from partita.problem import Problem


def shared(devices: int, cores: int | None) -> Cluster:
    """Processes that move 1e9 bytes a second through memory and do nothing else that takes time."""
    device = Device("process", 10**12, {"float32": 1e30}, 1e9, on_host=True)
    return Cluster.of("test", (devices,), device, Link(1e30), Link(1e30), cores)


@pytest.mark.parametrize(
    ("devices", "cores", "busy", "threads", "slowdown"),
    [
        (1, 2, 1, 2, 1.0),
        (2, 2, 2, 1, 1.0),
        (3, 8, 3, 2, 1.0),
        (4, 2, 4, 1, 2.0),
        (4, 2, 2.5, 1, 1.25),
        (4, 2, 1.5, 1, 1.0),
        (7, 2, 7, 1, 3.5),
        (8, None, 8, 1, 1.0),
    ],
)
def test_processes_share_the_cores(devices, cores, busy, threads, slowdown):
    cluster = shared(devices, cores)
    assert cluster.threads == threads
    assert cluster.slowdown(busy) == slowdown


def test_messages_wait_for_a_core():
    device = Device("process", 1, {}, 1.0)
    link = Link(8e9, 1e-4, 0.5)
    crowded = Cluster.of("c", (6,), device, link, link, cores=2).link(False)
    assert (crowded.bytes_per_second, crowded.latency_seconds, crowded.efficiency) == (
        8e9 / 3,
        pytest.approx(3e-4),
        0.5,
    )
    assert Cluster.of("c", (2,), device, link, link, cores=2).link(True) == link
    assert Cluster.of("c", (6,), device, link, link).link(True) == link


def test_the_cores_of_this_machine_are_in_the_name():
    cores = len(os.sched_getaffinity(0))
    cluster = parse_cluster("cpu", devices=4)
    assert cluster.cores == cores
    assert cluster.name == f"4xcpu on {cores} core{'s' if cores > 1 else ''}"
    assert parse_cluster("4xh200").cores is None
    assert cluster.resized(6).cores == cores


def test_a_process_that_is_pinned_has_fewer_cores():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from partita.cluster import parse_cluster; c = parse_cluster('cpu', 3); print(c.cores, c.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 3xcpu on 1 core\n"


def test_a_cluster_file_states_cores(tmp_path):
    path = tmp_path / "office.json"
    path.write_text(json.dumps({"nodes": [8], "preset": "cpu", "cores": 64}))
    cluster = parse_cluster(str(path))
    assert (cluster.name, cluster.cores, cluster.threads) == ("office", 64, 8)
    path.write_text(json.dumps({"nodes": [8], "preset": "cpu"}))
    assert parse_cluster(str(path)).cores == len(os.sched_getaffinity(0))
    path.write_text(json.dumps({"nodes": [8], "preset": "h200", "cores": 64}))
    with pytest.raises(ClusterError, match=r'office.json: cores: 64: devices of preset "h200" don\'t share'):
        parse_cluster(str(path))


def cost(flops, moved, transcendental) -> BlockCost:
    zeros = np.zeros(len(flops))
    return BlockCost(
        np.array(flops), zeros.astype(bool), np.array(moved), zeros, np.array(transcendental),
        0.0, 0.0, (), (), 0, 0, (), frozenset(),
    )  # fmt: skip


def test_a_process_issues_and_then_computes():
    figures = {"memory_bytes_per_second": 100.0, "op_seconds": 0.5, "transcendental_seconds": 0.01}
    block = cost([8e3, 0.0, 0.0], [100.0, 300.0, 200.0], [0.0, 0.0, 700.0])
    process = Device("process", 1, {}, on_host=True, **figures)
    accelerator = Device("accelerator", 1, {}, **figures)
    # Ops bound by arithmetic (8 s), by memory (3 s) and by a transcendental function (7 s).
    assert seconds(block, accelerator, 1.0) == 18.0
    assert seconds(block, accelerator, 0.01) == 1.5  # 0.18 s of work, but three ops to issue
    assert seconds(block, process, 1.0) == 1.5 + 18.0
    assert block.compute_seconds(process, 1e3, 2.0, threads=4) == 1.5 + 2 * 18.0 / 4


def seconds(block: BlockCost, device: Device, ratio: float) -> float:
    return round(block.compute_seconds(device, 1e3, ratio), 9)


def chain(blocks: int) -> Graph:
    """Blocks of one op that moves 1e9 bytes a sample: 1 s forward and 2 s backward."""
    tensors = [Tensor("x0", (5 * 10**8,), "int8", role="input", gradient=False)]
    ops = []
    for index in range(blocks):
        tensors += [
            Tensor(f"w{index}", (0,), role="parameter"),
            Tensor(f"x{index + 1}", (5 * 10**8,), "int8"),
        ]
        ops.append(Op(f"o{index}", "cumsum", (f"x{index}", f"w{index}"), (f"x{index + 1}",), f"b{index}"))
    own = tuple(Block(f"b{index}", (f"w{index}",)) for index in range(blocks))
    return check(Graph("chain", 1, None, tuple(tensors), tuple(ops), own, ("x0",), (f"x{blocks}",)))


@pytest.mark.parametrize(("dp", "cores", "expected"), [(1, 1, 4 * 0.5), (2, 2, 3 * 4 * 0.5), (2, 1, 2 * 3 * 4 * 0.5)])
def test_each_parameter_costs_the_host_an_op_at_a_step_s_end(dp, cores, expected):
    device = Device("process", 10**12, {"float32": 1e30}, 1e9, on_host=True, op_seconds=0.5)
    cluster = Cluster.of("test", (dp,), device, Link(1e30), Link(1e30), cores)
    fix = {"pp": 1, "dp": dp, "tp": 1, "micro_batch": 1, "recompute": "none", "zero": 0}
    found = plan(Problem(chain(4), cluster, dp, precision="fp32", target="partita", fix=fix))
    assert found.predicted.breakdown.sync_seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cores", "pp", "dp", "micro_batches"),
    [(None, 4, 1, 8), (8, 4, 1, 8), (4, 4, 1, 8), (3, 4, 1, 8), (2, 4, 1, 8), (1, 4, 1, 8), (2, 4, 1, 1), (2, 2, 2, 4),
     (1, 1, 4, 2)],
)  # fmt: skip
def test_a_step_takes_its_critical_path_or_all_work_over_the_cores(cores, pp, dp, micro_batches):
    batch = dp * micro_batches
    fix = {"pp": pp, "dp": dp, "tp": 1, "micro_batches": micro_batches, "recompute": "none", "zero": 0}
    found = plan(Problem(chain(4), shared(pp * dp, cores), batch, precision="fp32", target="partita", fix=fix))
    threads = 1 if cores is None else max(1, cores // (pp * dp))
    stage = 3.0 * 4 / pp / threads
    path = (micro_batches + pp - 1) * stage
    work = batch * 4 * 3.0 / (cores or pp * dp)
    assert found.predicted.step_seconds == pytest.approx(max(path, work))


def test_the_same_machine_gives_the_same_plan():
    first, second = (
        plan(Problem(chain(3), parse_cluster("cpu", devices=3), 6, precision="fp32", target="partita"))
        for _ in range(2)
    )
    assert first == second
    assert first.cluster == f"3xcpu on {parse_cluster('cpu', devices=3).name.split(' on ')[1]}"
