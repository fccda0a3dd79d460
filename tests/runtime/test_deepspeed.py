"""Training inside a DeepSpeed engine against training on one device: the parity table's rows of the main job.

DeepSpeed's engine computes in fp32, bf16 and fp16 only (it refuses float64 parameters): these rows have no
float64 twin.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout
from tests.runtime.training import gradients_of_both, train

# DeepSpeed's engines take seconds to make.
pytestmark = pytest.mark.slow

LAYOUTS = {
    **{f"dp2 zero{zero}": Layout(dp=2, zero=zero) for zero in (0, 1, 2, 3)},
    "dp4 zero2": Layout(dp=4, zero=2),
    "pp2": Layout(pp=2),
    "pp2 gpipe": Layout(pp=2, schedule="gpipe"),
    "pp2 zero1": Layout(pp=2, zero=1),
    **{f"pp2 dp2 zero{zero}": Layout(pp=2, dp=2, zero=zero) for zero in (0, 1)},
    "tp2": Layout(tp=2),
    "pp2 tp2": Layout(pp=2, tp=2),
    "pp2 tp2 zero1": Layout(pp=2, tp=2, zero=1),
    **{f"dp2 tp2 zero{zero}": Layout(dp=2, tp=2, zero=zero) for zero in (1, 2, 3)},
    "pp4 uneven": Layout(pp=4, sizes=(1, 3, 1, 1)),
    "pp2 recompute": Layout(pp=2, recompute="full"),
    "pp2 tp2 recompute": Layout(pp=2, tp=2, recompute="full"),
    "dp2 zero3 recompute": Layout(dp=2, zero=3, recompute="full"),
    "dp2 zero3 selective": Layout(dp=2, zero=3, recompute="selective"),
    "pp4 1 micro-batch": Layout(pp=4, micro_batches=1),
    "pp4 5 micro-batches": Layout(pp=4, micro_batches=5),
    "pp2 dp2 zero1 3 micro-batches": Layout(pp=2, dp=2, zero=1, micro_batches=3),
}
# The middle blocks are a stage of their own, which gradients pass through and in which nothing is trained.
FROZEN_STAGE = {"pp3": Layout(pp=3), "pp3 dp2 zero1": Layout(pp=3, dp=2, zero=1)}
# Heads of two sizes and nothing tied: that matters where it is cut, and where stages or copies are made of it.
LLAMA = (
    "dp2 zero3", "pp2 dp2 zero1", "tp2", "pp2 tp2 zero1", "pp2 tp2 recompute", "dp2 tp2 zero2",
)  # fmt: skip
# Otherwise parameters as small as these models' stay whole on every rank.
PARTITIONED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
# Of these as DeepSpeed has them by default.
WHOLE = ("gpt2 dp2 zero3", "gpt2 dp2 zero3 padded", "gpt2 dp2 zero3 recompute")
PADDED = ("dp2 zero0", "dp2 zero2", "dp2 zero3", "pp2", "pp2 dp2 zero1", "tp2", "pp2 tp2")
# How many labels count is not a matter of the model; its mask is.
PADDED_LLAMA = ("dp2 zero2", "pp2 tp2")


def table() -> list[tuple[str, Case]]:
    # Copies of pieces at ZeRO-2 are Llama's.
    rows = [(f"gpt2 {name}", Case("gpt2", layout)) for name, layout in LAYOUTS.items() if name != "dp2 tp2 zero2"]
    rows += [(f"llama {name}", Case("llama", LAYOUTS[name])) for name in LLAMA]
    rows += [(f"{model} {name} padded", Case(model, LAYOUTS[name], padded=True))
             for model, names in (("gpt2", PADDED), ("llama", PADDED_LLAMA)) for name in names]  # fmt: skip
    rows += [("gpt2 untied pp2 tp2", Case("gpt2 untied", LAYOUTS["pp2 tp2"]))]
    rows += [
        (f"gpt2 frozen middle {name}", Case("gpt2 frozen middle", layout))
        for name, layout in (("pp2", LAYOUTS["pp2"]), *FROZEN_STAGE.items())
    ]
    configured = {"optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True, "adam_w_mode": False}}}
    rows += [
        (f"gpt2 {name} configured", Case("gpt2", LAYOUTS[name], optimizer="configured", config=configured))
        for name in ("pp2", "dp2 zero1")
    ]
    rows = [(name, replace(row, engine="deepspeed")) for name, row in rows]
    partitioned = [(f"{name} partitioned", replace(row, config=PARTITIONED)) for name, row in rows if "zero3" in name]
    return [(name, row) for name, row in rows if "zero3" not in name or name in WHOLE] + partitioned


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in table()])
def test_training_is_that_of_one_device(pool: Pool, case: Case) -> None:
    outcomes = pool.run(train, case.layout.devices, case, timeout=120)
    assert_equal(case, outcomes)
    # GPT-2's head reads the embedding's weight: with stages there is a copy, and assert_equal has compared it.
    assert any(outcome.shared for outcome in outcomes) == (case.model == "gpt2" and case.layout.pp > 1)


# With ZeRO-1 DeepSpeed keeps gradients of bf16 parameters in fp32, without it in bf16.
@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(
            ("gpt2", name)
            for name in (
                "pp2", "pp2 dp2 zero1", "dp2 zero0", "dp2 zero1", "dp2 zero2", "dp2 zero3", "pp2 tp2"
            )
        ),
        ("llama", "pp2 tp2"),
        *(("gpt2 frozen middle", name) for name in FROZEN_STAGE),
    ],
)  # fmt: skip
def test_bfloat16_is_near(pool: Pool, name: str, model: str) -> None:
    case = Case(model, (LAYOUTS | FROZEN_STAGE)[name], dtype="bfloat16", engine="deepspeed", steps=1)
    assert_equal(case, pool.run(train, case.layout.devices, case, timeout=120))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(
            ("gpt2", name)
            for name in (
                "dp2 zero0", "dp2 zero1", "dp2 zero2", "dp2 zero3", "pp2", "pp2 zero1", "pp2 tp2", "pp2 tp2 zero1",
                "dp2 tp2 zero1",
            )
        ),
        *(("gpt2 frozen middle", name) for name in FROZEN_STAGE),
    ],
)  # fmt: skip
def test_clipping_is_by_the_norm_of_the_whole_model(pool: Pool, model: str, name: str) -> None:
    """By SGD, whose next losses show by how much gradients were clipped; Adam's would not."""
    case = Case(
        model,
        (LAYOUTS | FROZEN_STAGE)[name],
        engine="deepspeed",
        clip_norm=0.25,
        optimizer="sgd",
        config={"zero_allow_untested_optimizer": True},
    )
    outcomes = pool.run(train, case.layout.devices, case, timeout=120)
    assert outcomes[0].dense_norm > 0.5
    assert_equal(case, outcomes)


@pytest.mark.parametrize("name", ["pp2 tp2", "dp2 zero1", "dp2 zero3"])
def test_recomputation_repeats_its_dropout(pool: Pool, name: str) -> None:
    case = Case("gpt2 dropout", LAYOUTS[name], engine="deepspeed")
    again = replace(case, layout=replace(case.layout, recompute="full"))
    for losses, differences in pool.run(gradients_of_both, case.layout.devices, case, again, timeout=120):
        assert losses[0] == losses[1]
        assert {name: error for name, error in differences.items() if error} == {}


def group_threads() -> int:
    """How many of this process's groups ask the network. Here that is the one of this call."""
    found = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        # A thread may end meanwhile.
        with suppress(OSError):
            found += path.read_text().startswith("gloo_tcp")
    return found


@pytest.mark.parametrize("name", ["pp2", "dp2 zero2", "dp2 zero3"])
def test_an_engine_that_is_over_leaves_no_group(pool: Pool, name: str) -> None:
    """Hundreds of tests would leave a thousand threads, which take the processors from the tests that follow."""
    pool.run(train, 2, Case("gpt2", LAYOUTS[name], engine="deepspeed", steps=1), timeout=120)
    assert pool.run(group_threads, 2) == [1, 1]
