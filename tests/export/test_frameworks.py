"""Each framework reads its own export on real ranks and comes to the numbers of the plan."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

import pytest

from partita.plugins.export import accelerate, deepspeed, megatron, trainer
from tests.export import frameworks
from tests.export.plans import made, recomputing, split
from tests.ranks.pool import Pool
from tests.runtime.programs import Layout

# Not imported here: whoever leaves these tests out needn't wait for it.
without = [name for name in ("deepspeed", "transformers") if find_spec(name) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(without), reason=f"needs {without}")]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_deepspeed_reads_the_batch_zero_and_precision(pool: Pool, zero: int, precision: str) -> None:
    plan = made(Layout(dp=2, micro_batches=5, zero=zero), precision=precision)
    files = deepspeed.export(plan).files
    assert list(files) == ["deepspeed.json"]
    # 3 samples a micro-batch and copy, 5 of them, 2 copies.
    right = (30, 3, 5, zero, precision == "bf16", precision == "fp16")
    assert pool.run(frameworks.deepspeed_numbers, 2, files["deepspeed.json"]) == [right, right]


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        (Layout(pp=2, dp=2, micro_batches=3, zero=1), 4),
        (Layout(pp=4, micro_batches=2, sizes=(1, 2, 2, 3)), 6),
        (Layout(pp=2, micro_batches=2, sizes=(4, 1), recompute="full"), 3),
    ],
)
def test_deepspeed_pipelines_the_blocks_of_the_plan(pool: Pool, layout: Layout, layers: int) -> None:
    plan = made(layout, layers)
    exported = deepspeed.export(plan)
    config, stages = exported.files["deepspeed.json"], exported.files["stages.json"]
    assert stages["block_counts"] == [len(stage.blocks) for stage in plan.stages]
    assert stages["parts"] == [0, *accumulate(stages["block_counts"])]
    assert stages["activation_checkpoint_interval"] == int(layout.recompute == "full")
    outcomes = pool.run(frameworks.deepspeed_pipeline, exported.processes, config, stages, timeout=120)
    # Rank r of DeepSpeed is the r-th device of the plan.
    blocks = [
        list(range(stages["parts"][s], stages["parts"][s + 1]))
        for s, stage in enumerate(plan.stages)
        for _ in stage.devices
    ]
    assert outcomes == [
        {
            "blocks": held, "copies": layout.dp, "micro_batches": layout.micro_batches,
            "batch": plan.global_batch, "finite": True,
        }
        for held in blocks
    ]  # fmt: skip


FIRST_LAST = ["--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"]


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        # (first, middle, last) of 30 layers on 4 stages whose largest has 8, and one that the two options can't say.
        ((7, 8, 8, 7), [FIRST_LAST[0], "7", FIRST_LAST[1], "7"]),
        ((6, 8, 8, 8), [FIRST_LAST[0], "6", FIRST_LAST[1], "8"]),
        ((8, 8, 8, 6), [FIRST_LAST[0], "8", FIRST_LAST[1], "6"]),
        ((8, 7, 7, 8), [FIRST_LAST[0], "8", FIRST_LAST[1], "8"]),
        ((7, 7, 8, 8), ["--pipeline-model-parallel-layout", f"E{'t' * 7}|{'t' * 7}|{'t' * 8}|{'t' * 8}L"]),
        # Even; two stages; an embedding or a head alone.
        ((10, 10, 10), []),
        ((30,), []),
        ((12, 18), [FIRST_LAST[0], "12", FIRST_LAST[1], "18"]),
        ((0, 15, 15), ["--pipeline-model-parallel-layout", f"E|{'t' * 15}|{'t' * 15}L"]),
        ((4, 4, 0), ["--pipeline-model-parallel-layout", "Etttt|tttt|L"]),
    ],
)
def test_c01_megatron_builds_every_layer_where_the_plan_has_it(
    pool: Pool, counts: tuple[int, ...], options: list[str]
) -> None:
    pytest.importorskip("megatron.core")
    arguments = megatron.export(split(counts)).files["megatron.args"]
    assert megatron.split(counts) == options
    place = arguments.index("--num-layers") + 2
    assert arguments[place : arguments.index("--micro-batch-size")] == options
    (built,) = pool.run(frameworks.megatron_stages, 1, arguments)
    assert built["layers"] == list(counts)
    assert sum(built["layers"]) == sum(counts)


@pytest.mark.parametrize(
    ("flags", "right"),
    [
        (("--", "--"), (None, None, None)),
        (("RR", "RR"), ("full", "uniform", 1)),
        (("R-", "R-"), ("full", "block", 1)),
        (("SS", "SS"), ("selective", None, None)),
    ],
)
def test_megatron_recomputes_what_the_plan_does(pool: Pool, flags: tuple[str, str], right: tuple[object, ...]) -> None:
    pytest.importorskip("megatron.core")
    arguments = megatron.export(recomputing((2, 2), flags)).files["megatron.args"]
    (built,) = pool.run(frameworks.megatron_stages, 1, arguments)
    assert built["recompute"] == right


def test_megatron_gets_the_rest_of_the_plan(pool: Pool) -> None:
    pytest.importorskip("megatron.core")
    plan = made(Layout(pp=2, dp=2, tp=2, micro_batches=5, zero=1), precision="bf16")
    (built,) = pool.run(frameworks.megatron_stages, 1, megatron.export(plan).files["megatron.args"])
    assert (built["tp"], built["layers"], built["precision"]) == (2, [2, 2], (True, False))
    # What Megatron-core has no field for: Megatron-LM's own.
    assert built["others"] == [
        "--micro-batch-size", "3", "--global-batch-size", "30", "--seq-length", "8", "--optimizer", "adam",
        "--use-distributed-optimizer", "--untie-embeddings-and-output-weights",
    ]  # fmt: skip


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_the_trainer_contradicts_nothing(pool: Pool, tmp_path: Path, zero: int) -> None:
    plan = made(
        Layout(dp=2, micro_batches=5, zero=zero, recompute="full" if zero == 2 else "none"),
        precision="bf16" if zero else "fp32",
    )
    (arguments,) = trainer.export(plan).files.values()
    right = {
        "world": 2, "batch": 3, "accumulation": 5, "zero": zero, "clipping": 1.0, "optim": "adamw_torch",
        "recompute": zero == 2, "mismatches": [],
    }  # fmt: skip
    assert pool.run(frameworks.trainer_numbers, 2, arguments, tmp_path, timeout=120) == [right, right]


@pytest.mark.parametrize("zero", [1, 3])
def test_accelerate_reads_both_files(pool: Pool, tmp_path: Path, zero: int) -> None:
    exported = accelerate.export(made(Layout(dp=2, micro_batches=5, zero=zero)))
    for name in exported.files:
        (tmp_path / name).write_text(exported.text(name))
    (read,) = pool.run(frameworks.accelerate_numbers, 1, tmp_path, timeout=120)
    assert read == {
        "type": "DEEPSPEED", "processes": 2, "machines": 1, "zero3_init": zero == 3, "zero": zero, "accumulation": 5,
        "micro_batch": 3,
    }  # fmt: skip
