"""What is said of stages that choose by themselves, and how stages are written in one line."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from partita.cli.model import load_model
from partita.cli.options import problem
from partita.plan import BATCH_CUT, Cut, Order, Stage, Strategy
from partita.planner.arrangement import arrangement
from partita.planner.joint.plan import solve
from partita.planner.reasons import reasons
from partita.simulate.predict import predicted

PLAIN = Strategy((BATCH_CUT,), 0, "none")
SPLIT = Cut("batch", ("micro", "data", "tensor"))
HEADS = Cut("h", ("tensor",))
AGAIN = replace(PLAIN, recompute="full")


def stage(dp=2, tp=1, samples=4, strategies=(PLAIN, PLAIN)) -> Stage:
    names = tuple(f"b{number}" for number in range(len(strategies)))
    return Stage("s", names, tuple(range(dp * tp)), dp, tp, samples, 4, tuple(strategies))


ORDER = Order("1f1b", 2, 4)
# Stages, their order, what is said.
CASES = {
    "alike": ([stage(), stage()], ORDER, "pp=2, tp=1, dp=2, ZeRO 0, micro-batch of 2, no recomputation, 1f1b"),
    "one stage": (
        [stage()],
        Order("gpipe", 1, 4),
        "pp=1, tp=1, dp=2, ZeRO 0, micro-batch of 2, no recomputation, gpipe",
    ),
    "unlike": (
        [stage(), stage(dp=1, tp=2), stage(dp=1, tp=2)],
        Order("1f1b", 3, 4, {"depth": 1}),
        "pp=3, ZeRO 0, no recomputation, 1f1b depth=1; stage 0: tp=1, dp=2, micro-batch of 2; "
        "stages 1 and 2: tp=2, dp=1, micro-batch of 4",
    ),
    "some blocks again": (
        [stage(strategies=(AGAIN, PLAIN)), stage(strategies=(AGAIN, AGAIN))],
        ORDER,
        "pp=2, tp=1, dp=2, ZeRO 0, micro-batch of 2, 1f1b; stage 0: full recomputation of 1 of 2 blocks; "
        "stage 1: full recomputation",
    ),
    "ZeRO by block": (
        [stage(strategies=(replace(PLAIN, zero=1), replace(PLAIN, zero=3)))],
        ORDER,
        "pp=1, tp=1, dp=2, ZeRO 1 and 3, micro-batch of 2, no recomputation, 1f1b",
    ),
    "two forms": (
        [stage(tp=2, strategies=(replace(PLAIN, cuts=(SPLIT,)), replace(PLAIN, cuts=(BATCH_CUT, HEADS))))],
        ORDER,
        "pp=1, tp=2, dp=2, ZeRO 0, micro-batch of 2, no recomputation, samples over tp in 1 of 2 blocks, 1f1b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_stages_in_one_line(name: str) -> None:
    stages, order, said = CASES[name]
    assert arrangement(stages, order) == said


def said_of(model, cluster, batch, target, memory=None, fix=()):
    solved = solve(problem(model, cluster, None, batch, None, "bf16", "adam", memory, target, fix))
    plan = solved.plan(solved.best)
    return plan, " ".join(reasons(solved, solved.best, plan)), solved


def test_why_blocks_are_computed_again() -> None:
    plan, text, _ = said_of("gpt3-6.7b", "1x8xa100-80gb", 128, "deepspeed", 24 * 2**30)
    counts = [sum(s.recompute == "full" for s in stage.strategies) for stage in plan.stages]
    found = re.search(
        r"(\d+) of 34 blocks are computed again in the backward pass \((.*?)\): without that stage 0 would need "
        r"([\d.]+) GiB a device, 24.00 GiB are there",
        text,
    )
    assert int(found[1]) == sum(counts) > 0
    assert found[2] == ", ".join(
        f"stage {at}: {count} of {len(plan.stages[at].blocks)}" for at, count in enumerate(counts) if count
    )
    assert float(found[3]) > 24
    _, text, _ = said_of("gpt3-6.7b", "1x8xa100-80gb", 128, "deepspeed", fix=("recompute=full",))
    assert "34 of 34 blocks are computed again" in text
    assert ", as held." in text


def test_what_unlike_stages_do_with_their_devices() -> None:
    plan, text, _ = said_of("swin-t", "3x4xa100-80gb", 72, "partita", 3 * 2**30)
    uses = [(len(stage.devices), stage.tp, stage.dp) for stage in plan.stages]
    assert len(set(uses)) > 1
    assert "Stages use their devices in unlike ways" in text
    for devices, tp, dp in set(uses):
        assert re.search(rf"{devices} devices?( each)? as tp={tp}, dp={dp}", text)
    other = re.search(r"\) takes [\d.]+ m?s, ([\d.]+) % more under the formula", text)
    assert float(other[1]) >= 0


def test_a_deeper_warm_up_is_said() -> None:
    plan, text, solved = said_of("gpt3-125m", "4x1xa100-80gb", 64, "partita", fix=("pp=4", "tp=1", "micro_batch=1"))
    assert solved.best.table.depth > 0
    flights = ", ".join(str(stage.in_flight) for stage in plan.predicted.breakdown.stages)
    assert (
        f"than 1F1B needs go ahead over each boundary, so that transfers are hidden; the stages hold {flights}" in text
    )


@pytest.mark.slow
def test_c21_a_strategy_for_each_part() -> None:
    """Where samples over the axis tensor cost less than heads, a stage may have blocks of both kinds; what changes
    between them is in its price, which is its simulation's."""
    plan, text, solved = said_of("gpt3-2.7b", "2x4xa100-80gb", 64, "partita", 13 * 2**30)
    counts = {
        number: sum(s.cut_along("tensor") == {"batch"} for s in stage.strategies)
        for number, stage in enumerate(plan.stages)
    }
    mixed = {number: count for number, count in counts.items() if 0 < count < len(plan.stages[number].blocks)}
    assert mixed
    said = ", ".join(f"stage {at}: {count} of {len(plan.stages[at].blocks)}" for at, count in counts.items() if count)
    assert f"Some blocks divide a copy's samples over tp, not their heads and hidden units ({said})" in text
    # Captured with as many samples as are cut.
    simulated = predicted(
        load_model("gpt3-2.7b", None, "bfloat16", 2), plan, solved.engine.pricing.cluster
    ).predicted.breakdown.stages
    for one, two in zip(plan.predicted.breakdown.stages, simulated, strict=True):
        assert one.forward_seconds == pytest.approx(two.forward_seconds, rel=1e-8)
        assert one.backward_seconds == pytest.approx(two.backward_seconds, rel=1e-8)


def test_c29_a_group_of_four_stands_in_the_larger_node(tmp_path) -> None:
    """Nodes of 2 and 4 devices: four take the second node and leave the first idle, two don't cross."""
    (tmp_path / "mixed.json").write_text('{"nodes": [2, 4], "preset": "a100-80gb"}')
    plan, text, _ = said_of("gpt3-125m", str(tmp_path / "mixed.json"), 24, "deepspeed", fix=("tp=4",))
    assert (plan.devices, plan.idle_devices) == ((2, 3, 4, 5), (0, 1))
    assert "devices 0 and 1 are idle" in text
    assert "cross nodes" not in text
    plan, text, _ = said_of("gpt3-125m", str(tmp_path / "mixed.json"), 24, "deepspeed", fix=("tp=2",))
    assert (plan.devices, plan.idle_devices) == ((0, 1, 2, 3, 4, 5), ())
    assert "cross nodes" not in text
