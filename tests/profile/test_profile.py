"""Profiles: rows that can't be, what lies between and beyond measurements, what a plan takes from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cli.options import problem
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.cost.precision import peak_flops
from partita.errors import InputError
from partita.planner import plan
from partita.planner.joint.kinds import BlockCut
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way
from partita.profile.measured import BlockShape, MeasuredBlock, Sample, interpolate
from partita.profile.profiled import profiled
from partita.profile.read import findings, read_profile
from partita.profile.rows import ProfileFile

H200 = Path(__file__).parents[1] / "data/profiles/h200.json"
ONE = Uniform(micro=8)


def written(folder: Path, **parts: object) -> str:
    path = folder / "profile.json"
    path.write_text(json.dumps({"device": "NVIDIA H200", **parts}))
    return str(path)


def row(**parts: object) -> dict[str, object]:
    return {"block": "gpt", "hidden": 1024, "heads": 16, "seq": 2048, "fwd_ms": 1.0, "bwd_ms": 2.0,
            "activation_bytes": 100, "params": 12596224, **parts}  # fmt: skip


# Rows of FLOPs and forward seconds on a device of 989 TFLOP/s.
CANT_BE = {
    "A": (1e12, 1.5), "B": (1e12, 0.0005), "C": (1e12, float("nan")), "D": (1e12, -0.003), "E": (1e12, float("inf")),
    "F": (1e12, 0.0), "G": (0.0, 0.0), "H": (1e12, 0.0015),
}  # fmt: skip


def test_c28_numbers_that_cant_be_are_found_and_two_rows_are_right():
    rows = [{"block": name, "flops": flops, "fwd_seconds": seconds} for name, (flops, seconds) in CANT_BE.items()]
    file = ProfileFile.model_validate({"device": "NVIDIA H100", "blocks": rows})
    found = {file.blocks[int(f.row[7:-1])].block: f for f in findings(file, 989e12)}
    assert sorted(found) == ["A", "B", "C", "D", "E", "F"]
    assert all(finding.field == "fwd_seconds" for finding in found.values())
    assert [name for name, finding in found.items() if finding.suspicious] == ["A"]
    assert "0.667 TFLOP/s, 0.07%" in found["A"].wrong
    assert "were 1.5 ms meant?" in found["A"].wrong
    assert "2000 TFLOP/s, more than the device's peak of 989" in found["B"].wrong


def test_a_message_names_file_row_field_and_value(tmp_path):
    path = written(tmp_path, blocks=[row(), row(micro_batch=2, bwd_ms=float("nan")), row(micro_batch=4, fwd_ms=-3.0)])
    with pytest.raises(InputError) as error:
        read_profile(path)
    text = str(error.value)
    assert "2 of 3 rows can't be" in text
    assert f"{path}: blocks[1], bwd_ms = nan: a finite time works" in text
    assert f"{path}: blocks[2], fwd_ms = -3.0: a time must be positive" in text


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "the profile is empty"),
        ({"blocks": [row(forward_ms=1)]}, "blocks.0.forward_ms: extra inputs are not permitted"),
        ({"blocks": [row(fwd_seconds=1e-3)]}, "says the same once more"),
        ({"blocks": [row(), row()]}, "the same block was measured before"),
        ({"blocks": [row(fwd_ms=None)]}, "a row needs fwd_ms or fwd_seconds"),
        ({"blocks": [row(fwd_ms=0.01)]}, "more than the device's peak of 989"),
        ({"blocks": [row(activation_bytes=-1)]}, "activation_bytes = -1.0"),
        ({"micro": {"gemm_bf16": [[8192, 8192, 8192, 0.5]]}}, "micro.gemm_bf16[0], ms = 0.5"),
        ({"micro": {"copy": [["d2d_bf16", 0, 0.1]]}, "columns": {"copy": ["kind", "bytes", "ms"]}}, "bytes = 0"),
        ({"collectives": [{"op": "all_reduce", "devices": 2, "bytes": 8, "ms": 0}]}, "collectives[0], ms = 0.0"),
        ({"blocks": [row()], "precision": "fp32"}, "--precision fp32 works"),
        ({"blocks": [row()], "device": "NVIDIA A100-SXM4-80GB"}, "a cluster of a100 devices works"),
    ],
)
def test_a_profile_that_cant_be_used(tmp_path, parts, words):
    with pytest.raises(InputError) as error:
        profiled(parse_cluster("1xh200"), written(tmp_path, **parts), "bf16")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("points", "at", "value"),
    [
        ([(1, 10), (2, 16), (4, 30)], 2, 16),
        ([(1, 10), (2, 16), (4, 30)], 3, 23),  # between
        ([(1, 10), (2, 16), (4, 30)], 8, 58),  # beyond: 7 for each more
        ([(2, 16), (4, 30)], 1, 9),  # before
        ([(2, 12), (4, 12.5)], 1, 11.75),
        ([(2, 16)], 8, 64),  # in proportion
        ([(2, 16), (4, 15)], 8, 15),  # noise: no less than the last
    ],
)
def test_between_and_beyond(points, at, value):
    assert interpolate(points, at) == pytest.approx(value)


def test_a_measured_block_covers_its_range():
    samples = Sample(2, 1e-3, 2e-3, 100), Sample(4, 2e-3, 4e-3, 200)
    block = MeasuredBlock(BlockShape("gpt", "", 8, 1, 8, 1, 10), samples)
    assert [block.covers(micro) for micro in (1, 2, 3, 4, 5)] == [False, True, True, True, False]
    assert block.at(3) == Sample(3, pytest.approx(1.5e-3), pytest.approx(3e-3), pytest.approx(150))


def test_a_plan_takes_the_measured_blocks():
    stated = problem("gpt3-350m", "1xh200", None, 8, 2048, "bf16", "adam", None, "deepspeed", (), str(H200))
    pricing = Pricing(stated, alike(stated.graph))
    prices, device = Way(pricing, ONE).table.prices, stated.cluster.device
    measured, peak = device.measured, peak_flops(device, stated.precision)
    # From the file, of 2 and 4 samples: 0.44429 and 0.55664 ms forward, 1.0084 and 1.5499 ms backward. By the host's
    # 38 microseconds for each of 10 ops forward takes no less than 0.38 ms.
    layer = pricing.kinds.costs(BlockCut(1))[1]
    forward = max((0.44429e-3 + 0.55664e-3) / 2 - measured.start_forward_seconds, 10 * device.op_seconds)
    backward = (1.0084e-3 + 1.5499e-3) / 2 - measured.start_backward_seconds
    assert layer.passes(device, peak, 3.0) == pytest.approx((forward, backward))
    # Beyond 4 samples as the kernels grow, which is nearly in proportion.
    four, eight = layer.passes(device, peak, 4.0), layer.passes(device, peak, 8.0)
    assert [b / a for a, b in zip(four, eight, strict=True)] == pytest.approx([2.05, 2.05], abs=0.1)
    assert prices.forward[0, 1:-1, 0] == pytest.approx([eight[0]] * 24)
    # Bytes kept of 2 and 4, and as many more for each sample.
    rows = {r.micro_batch: r for r in read_profile(H200).blocks if (r.hidden, r.tp, r.block) == (1024, 1, "gpt")}
    kept = rows[4].activation_bytes + 2 * (rows[4].activation_bytes - rows[2].activation_bytes)
    assert prices.held_bytes[0, 1:-1, 0] == pytest.approx([kept] * 24)
    # 32 bytes for each of 2048 · 1024 values of 8 samples, a MiB or so beside.
    assert kept == pytest.approx(8 * 32 * 2048 * 1024, rel=0.005)


def test_half_of_what_does_not_grow_is_the_start(tmp_path):
    """Blocks that take 0.3 ms and 1 ms a sample forward, 0.5 and 2 backward; one that the host binds takes no part."""
    times = [row(hidden=64 * k, micro_batch=m, fwd_ms=0.3 + m, bwd_ms=0.5 + 2 * m) for k in range(1, 5) for m in (2, 4)]
    times += [row(hidden=640, micro_batch=m, fwd_ms=0.9, bwd_ms=1.8) for m in (2, 4)]
    path = written(
        tmp_path,
        blocks=[{**r, "params": 100} for r in times]
        + [{**row(params=100, hidden=64), "micro_batch": 8, "fwd_ms": 8.3, "bwd_ms": 16.5}],
    )
    found = profiled(parse_cluster("1xh200"), path, "bf16").device.measured
    # Half of it: without single kernels, the least that a start can be is nothing.
    assert found.start_forward_seconds == pytest.approx(0.15e-3)
    assert found.start_backward_seconds == pytest.approx(0.25e-3)


def test_reasons_say_what_is_measured_and_what_is_extrapolated():
    held = ["micro_batches=1"]
    stated = problem("gpt3-350m", "1xh200", None, 8, 2048, "bf16", "adam", None, "deepspeed", held, str(H200))
    found = plan(stated)
    assert any("24 of 26 blocks are measured at tp=1; single kernels" in reason for reason in found.reasons)
    assert any("micro-batch of 8 lies outside the measured 1, 2 and 4" in reason for reason in found.reasons)
    assert (
        found.problem
        != plan(problem("gpt3-350m", "1xh200", None, 8, 2048, "bf16", "adam", None, "deepspeed", held)).problem
    )
    # All of it is the measured kernels' work: about 5 · 10¹² FLOPs a sample of a device that reaches 400 TFLOP/s.
    assert 0.08 < found.predicted.step_seconds < 0.14


def test_other_sequences_and_widths_are_priced_by_kernels():
    stated = problem("gpt3-350m", "1xh200", None, 8, 1024, "bf16", "adam", None, "deepspeed", (), str(H200))
    assert any("none of these blocks" in reason for reason in plan(stated).reasons)


def test_blocks_are_predicted_from_single_kernels():
    """The errors that benchmarks/profile_blocks.py prints, of the gpt blocks that a device is busy with."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import profile_blocks

    rows = [r for r in read_profile(H200).blocks if r.block == "gpt" and r.fwd_ms + r.bwd_ms > 2]
    model = profile_blocks.Model(H200, parse_cluster("1xh200").device)
    pairs = [(model.predict(r), profile_blocks.measured(r)) for r in rows]
    assert len(rows) == 54
    assert sum(abs(ours.total / theirs.total - 1) for ours, theirs in pairs) / 54 < 0.07
    assert max(abs(ours.kept / theirs.kept - 1) for ours, theirs in pairs) < 0.005
    between = [r for r in rows if r.micro_batch == 2]
    filled = [(profile_blocks.left_out(rows, r), profile_blocks.measured(r)) for r in between]
    errors = [abs(ours.total / theirs.total - 1) for ours, theirs in filled if ours is not None]
    assert len(errors) > 10
    assert sum(errors) / len(errors) < 0.05


def test_a_link_is_what_collectives_took(tmp_path):
    # 2 devices: an all-reduce sends its bytes once, in 2 steps. 1 ms of latency in all, 1 GB/s.
    rows = [{"op": "all_reduce", "devices": 2, "bytes": size, "ms": 1 + size * 1e-6} for size in (1000, 10**6, 10**8)]
    found = profiled(parse_cluster("2xh200"), written(tmp_path, collectives=rows), "bf16")
    assert found.kind.intra_node.bytes_per_second == pytest.approx(1e9)
    assert found.kind.intra_node.latency_seconds == pytest.approx(0.5e-3)
    assert found.kind.inter_node == parse_cluster("2xh200").kind.inter_node


def test_a_profile_is_of_the_nodes_whose_device_it_names(tmp_path):
    rows = [{"op": "all_reduce", "devices": 2, "bytes": size, "ms": 1 + size * 1e-6} for size in (1000, 10**8)]
    path = written(tmp_path, blocks=[row()], collectives=rows)
    before = parse_cluster("2xh200+2xa100-80gb")
    found = profiled(before, path, "bf16")
    assert [device.measured is not None for device in found.different_devices()] == [True, False]
    assert found.kinds[0].intra_node.bytes_per_second == pytest.approx(1e9)
    assert found.kinds[1] == before.kinds[1]
    with pytest.raises(InputError, match='is of "NVIDIA H200", the cluster\'s device is a100-80gb and v100-32gb'):
        profiled(parse_cluster("2xa100-80gb+2xv100-32gb"), path, "bf16")


def test_the_reasons_say_of_which_devices_a_profile_is():
    stated = problem("gpt3-350m", "1xh200+1xa100-80gb", None, 8, 2048, "bf16", "adam", None, "deepspeed", (), str(H200))
    reason = next(reason for reason in plan(stated).reasons if reason.startswith("Profile"))
    assert reason.endswith(" is of h200; stages on others, or on unlike ones, have the presets' figures.")
