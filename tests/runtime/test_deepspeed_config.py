"""What a plan means for DeepSpeed's configuration, and what is said where the two disagree."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Plan
from partita.plugins.capture_huggingface import capture_config
from partita.plugins.export.deepspeed_config import deepspeed_config
from tests.ranks.pool import Pool
from tests.runtime.dag_models import lowered, plan_of
from tests.runtime.engines import Case
from tests.runtime.programs import Layout, plan
from tests.runtime.training import Part, dense_model


@cache
def graph() -> Graph:
    settings = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 29, "n_positions": 8}
    return capture_config(settings, samples=3, seq=8)


def made(layout: Layout, precision: str = "fp32") -> Plan:
    return plan(graph(), layout, precision)


# dp2, 5 micro-batches of 3 samples: 30 samples a step.
PLANNED = Layout(dp=2, micro_batches=5)
BATCH = {"train_batch_size": 30, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5}
QUIET = {"steps_per_print": 10**9}


def zero(stage: int, **others: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **others}}


COMPLETED = [
    (PLANNED, "fp32", {}, {**BATCH, **zero(0), **QUIET}),
    (Layout(2, 2, 2, 5), "fp32", {}, {**BATCH, **zero(0), **QUIET}),
    (Layout(dp=2, micro_batches=5, zero=1), "fp32", {}, {**BATCH, **zero(1), **QUIET}),
    (Layout(dp=2, micro_batches=5, zero=3), "fp32", {}, {**BATCH, **zero(3, memory_efficient_linear=False), **QUIET}),
    (PLANNED, "bf16", {}, {**BATCH, **zero(0), "bf16": {"enabled": True}, **QUIET}),
    (
        Layout(dp=2, micro_batches=5, zero=1), "bf16", {},
        {**BATCH, **zero(1), "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, **QUIET},
    ),
    (PLANNED, "fp16", {}, {**BATCH, **zero(0), "fp16": {"enabled": True}, **QUIET}),
    # What the user said stays: the same as the plan, or about something that no plan decides.
    (PLANNED, "fp32", {**BATCH, **zero(0)}, {**BATCH, **zero(0), **QUIET}),
    (PLANNED, "fp32", {"steps_per_print": 7}, {**BATCH, **zero(0), "steps_per_print": 7}),
    (
        Layout(dp=2, micro_batches=5, zero=1), "fp32",
        {"zero_optimization": {"reduce_bucket_size": 1000}, "gradient_clipping": 0.5, "fp16": {"enabled": False}},
        {**BATCH, **zero(1, reduce_bucket_size=1000), "gradient_clipping": 0.5, "fp16": {"enabled": False}, **QUIET},
    ),
    (
        PLANNED, "fp16", {"fp16": {"initial_scale_power": 8}},
        {**BATCH, **zero(0), "fp16": {"enabled": True, "initial_scale_power": 8}, **QUIET},
    ),
    (
        Layout(dp=2, micro_batches=5, zero=1), "bf16", {"data_types": {"grad_accum_dtype": "bf16"}},
        {**BATCH, **zero(1), "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}, **QUIET},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "precision", "user", "complete"), COMPLETED)
def test_completed(layout: Layout, precision: str, user: dict[str, Any], complete: dict[str, Any]) -> None:
    before = deepcopy(user)
    assert deepspeed_config(made(layout, precision), user) == complete
    assert user == before


CONFLICTS = [
    ("fp32", {"train_batch_size": 32}, ['"train_batch_size": 32', "the plan needs 30"]),
    ("fp32", {"train_micro_batch_size_per_gpu": 4}, ['"train_micro_batch_size_per_gpu": 4', "the plan needs 3"]),
    ("fp32", {"gradient_accumulation_steps": 1}, ['"gradient_accumulation_steps": 1', "the plan needs 5"]),
    ("fp32", zero(2), ['"zero_optimization.stage": 2', "the plan needs 0"]),
    ("fp32", {"bf16": {"enabled": True}}, ["enables bf16", "computes in fp32"]),
    ("bf16", {"fp16": {"enabled": True}}, ["enables fp16", "computes in bf16"]),
    ("bf16", {"bf16": {"enabled": False}}, ['"bf16.enabled": False', "the plan needs True"]),
    ("fp32", {"tensor_parallel": {"autotp_size": 4}}, ['"tensor_parallel.autotp_size": 4', "tp=1"]),
    ("fp32", {"zero_optimization": 1}, ['"zero_optimization": 1', "an object is needed"]),
    ("bf16", {"bf16": True}, ['"bf16": True', "an object is needed"]),
]


@pytest.mark.parametrize(("precision", "user", "says"), CONFLICTS)
def test_conflicts_name_both_numbers(precision: str, user: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        deepspeed_config(made(PLANNED, precision), user)
    assert [words for words in says if words not in str(caught.value)] == []


def refusal(case: Case) -> str:
    try:
        Part(case, dense_model(case).state_dict())
    except PlanError as error:
        return str(error)
    return ""


REFUSED = [
    (
        Case("gpt2", Layout(dp=2), dtype="float16"),
        'the plan computes in fp16, DeepSpeed on this machine (device "cpu") in fp32 and bf16',
    ),
    (
        Case("gpt2", Layout(dp=2), dtype="float64"),
        'the plan computes in fp64, DeepSpeed on this machine (device "cpu") in fp32 and bf16',
    ),
    (
        Case("gpt2", Layout(pp=2, zero=2)),
        "the plan has ZeRO stage 2 with 2 pipeline stages; DeepSpeed divides gradients and parameters (2 and 3) only "
        "without a pipeline: zero=1 and 0 work, or pp=1",
    ),
    (
        Case("gpt2", Layout(dp=2), config={"optimizer": {"type": "Adam"}}),
        "initialize was given an optimizer, and the DeepSpeed configuration has one too; remove one",
    ),
    (
        Case("gpt2", Layout(dp=2), optimizer="configured"),
        'there is no optimizer: give initialize one, or the DeepSpeed configuration an "optimizer" section',
    ),
    (
        Case("gpt2", Layout(dp=2), config={"train_batch_size": 2}),
        'the DeepSpeed configuration has "train_batch_size": 2, the plan needs 8; remove the key',
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_every_rank_is_told_what_deepspeed_can_not_run(pool: Pool, case: Case, message: str) -> None:
    ranks = case.layout.devices
    assert pool.run(refusal, ranks, replace(case, engine="deepspeed")) == [message] * ranks


def test_a_loop_has_no_stage_that_is_frozen_as_a_whole() -> None:
    from partita.adapters.deepspeed.initialize import require_trained

    require_trained(plan_of("two towers", "fp32", "deepspeed"), lowered("two towers", "fp32", "deepspeed"))
    found = lowered("frozen tower", "fp32", "deepspeed")
    with pytest.raises(PlanError, match=r'nothing is trained in stage "stage0" \(blocks text\), and DeepSpeed'):
        require_trained(plan_of("frozen tower", "fp32", "deepspeed"), found)
