"""``partita profile`` on this machine: what it writes, what a run that was ended leaves, and the plan made from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.cli.options import problem
from partita.cost.alike import alike
from partita.cost.precision import peak_flops
from partita.planner.joint.kinds import BlockCut
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way
from partita.profile.read import read_profile

pytestmark = pytest.mark.slow
WORDS = ["profile", "gpt3-tiny", "--micro-batch", "2", "--devices", "1"]
H, S = 128, 128


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "tiny.json"
    assert main([*WORDS, "--micro-batch", "1", "--tp", "2", "-o", str(path)]) == 0
    return path


def rows_of(path):
    return {(row["block"], row["tp"], row["micro_batch"]): row for row in json.loads(path.read_text())["blocks"]}


def test_every_kind_of_block_is_measured(written):
    rows = rows_of(written)
    blocks = ("embedding", "gpt", "head")
    # 257 words can't be cut, but may be padded: every block has a half.
    assert set(rows) == {(block, tp, micro) for block in blocks for tp in (1, 2) for micro in (1, 2)}
    layer = rows["gpt", 1, 2]
    assert layer["params"] == 12 * H * H + 13 * H
    assert layer["flops"] == 2 * (24 * S * H * H + 4 * S * S * H)
    assert (layer["hidden"], layer["heads"], layer["seq"]) == (128, 4, 128)
    half = rows["gpt", 2, 2]
    assert half["params"] == 12 * H * H // 2 + 7 * H // 2 + 6 * H
    assert 0.5 < half["activation_bytes"] / layer["activation_bytes"] < 0.7
    assert all(row["fwd_ms"] > 0 and row["bwd_ms"] > 0 and row["spread"] >= 0 for row in rows.values())
    # Of each token: 16 values of width h (with the input in place of the output), in float32.
    assert layer["activation_bytes"] >= 2 * S * H * 4 * 16
    assert rows["gpt", 1, 1]["activation_bytes"] * 2 == pytest.approx(layer["activation_bytes"], rel=0.01)


def test_a_plan_takes_what_was_measured(written):
    stated = problem("gpt3-tiny", "cpu", 4, 16, None, "fp32", "adam", None, "deepspeed", (), str(written))
    pricing, rows = Pricing(stated, alike(stated.graph)), rows_of(written)
    cluster = stated.cluster
    if cluster.threads != 1:
        pytest.skip("measured on one thread, and each of 4 processes has more here")
    peak = peak_flops(cluster.device, "fp32")
    for tp in (1, 2):
        layer = pricing.kinds.costs(BlockCut(tp))[1].passes(cluster.device, peak, 2.0)
        assert layer == pytest.approx((rows["gpt", tp, 2]["fwd_ms"] * 1e-3, rows["gpt", tp, 2]["bwd_ms"] * 1e-3))
    prices = Way(pricing, Uniform(dp=4, micro=2, micro_batches=2)).table.prices
    assert prices.held_bytes[0, 1, 0] == rows["gpt", 1, 2]["activation_bytes"]


def test_what_is_there_is_not_measured_again(written, tmp_path, capsys):
    before = json.loads(written.read_text())
    lost = before["blocks"].pop(4)
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps({**before, "complete": False}))
    assert main([*WORDS, "--micro-batch", "1", "--tp", "2", "-o", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    assert [line.partition(": ")[0] for line in printed.err.splitlines()] == [
        f"[1/1] {lost['block']} tp={lost['tp']} micro-batch {lost['micro_batch']}"
    ]
    after = json.loads(path.read_text())
    assert after["blocks"][:-1] == before["blocks"]
    assert after["complete"]
    assert json.loads(printed.out)["blocks"] == after["blocks"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--precision", "fp64"], "this profile has precision = 'fp32', here it is 'fp64'"),
        (["--micro-batch", "0"], "--micro-batch 0: 1 and more work"),
    ],
)
def test_what_does_not_belong_together(written, capsys, words, says):
    assert main([*WORDS, "-o", str(written), *words]) == 2
    assert says in capsys.readouterr().err


def test_a_run_that_is_killed_goes_on(tmp_path):
    path = tmp_path / "tiny.json"
    command = [sys.executable, "-m", "partita.cli.main", *WORDS, "--micro-batch", "4", "--tp", "1", "-o", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGKILL)
    first = read_profile(path).blocks
    assert not read_profile(path).complete
    assert 1 <= len(first) < 6
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rest = read_profile(path)
    assert rest.complete
    assert rest.blocks[: len(first)] == first
    assert len(rest.blocks) == 6
    # Of what is there one line is said less.
    assert len(done.stderr.splitlines()) == 6 - len(first)
    assert [p.name for p in Path(tmp_path).iterdir()] == ["tiny.json"]


def test_collectives_between_processes(tmp_path):
    path = tmp_path / "tiny.json"
    assert main(["profile", "gpt3-tiny", "--micro-batch", "1", "--tp", "1", "--devices", "2", "-o", str(path)]) == 0
    rows = read_profile(path).collectives
    assert [(row.devices, row.bytes) for row in rows] == [(2, 2**k) for k in (10, 14, 18, 21, 24)]
    assert rows[-1].ms > rows[0].ms > 0
