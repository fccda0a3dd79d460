"""What the Trainer can do, with the key and without: the same on the same two ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.pool import Pool, RankError
from tests.trainer.compare import assert_equal
from tests.trainer.training import Outcome, Run, evaluate, model_of, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SGD = {"optim": "sgd", "learning_rate": 5e-2, "weight_decay": 0.0}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
SAVED = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
# Texts of all lengths, a last evaluation step that is not full, AdamW on two groups, a schedule, clipping.
WHOLE = Run(
    "llama", ragged=True,
    arguments={"gradient_accumulation_steps": 3, "max_grad_norm": 0.3, "max_steps": 3, "warmup_steps": 1, **EVALUATED},
)  # fmt: skip
RUNS: dict[str, Run] = {
    "lengths, groups, schedule, clipping": WHOLE,
    "SGD": replace(WHOLE, arguments={**WHOLE.arguments, **SGD}),
    "a last group that is not full": Run(arguments={**SGD, "gradient_accumulation_steps": 5, "max_steps": -1,
                                                    "num_train_epochs": 1}),
    "tokens counted by each process": Run(
        ragged=True,
        arguments={**SGD, "average_tokens_across_devices": False, "gradient_accumulation_steps": 2, "max_steps": 2},
    ),
    "frozen": Run(frozen=("transformer.wte", "transformer.h.0"), arguments={**SGD, "max_steps": 2}),
    "the loss outside of the model": Run(arguments={**SGD, "label_smoothing_factor": 0.1, "max_steps": 2,
                                                    "gradient_accumulation_steps": 2}),
    "activation checkpointing": Run(arguments={**SGD, "activation_checkpointing": True, "max_steps": 2}),
    "early stopping": Run(callbacks=("early stopping",), arguments={**SGD, **SAVED, "load_best_model_at_end": True}),
    "the best at the end": Run(arguments={**SGD, **SAVED, "load_best_model_at_end": True, "greater_is_better": True,
                                          "metric_for_best_model": "sum", "save_total_limit": 1}),
    "an optimizer and a schedule of the configuration": Run(
        arguments={"max_steps": 3, "learning_rate": 1e-3, "adam_epsilon": 1e-3},
        config={
            "zero_optimization": {"stage": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                      "weight_decay": "auto", "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                         "warmup_num_steps": "auto"}},
        },
    ),
}  # fmt: skip
KEYS: dict[str, dict[str, Any]] = {"dp2": {"fix": {"dp": 2}}, "pp2": {"fix": {"pp": 2}}, "tp2": {"fix": {"tp": 2}}}
TABLE = [
    *((name, "pp2") for name in RUNS),
    *((name, "dp2") for name in ("lengths, groups, schedule, clipping", "the loss outside of the model", "frozen")),
    ("SGD", "tp2"),
]


@pytest.fixture(scope="module")
def plain(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Sequence[Outcome]]:
    """The outcomes without the key, by the run's name."""

    @cache
    def of(name: str) -> Sequence[Outcome]:
        return pool.run(train, 2, RUNS[name], str(tmp_path_factory.mktemp("without")), timeout=200)

    return of


@pytest.mark.parametrize(("name", "plan"), TABLE)
def test_a_run_is_that_without_the_key(
    pool: Pool, plain: Callable[[str], Sequence[Outcome]], tmp_path: Path, name: str, plan: str
) -> None:
    run = RUNS[name]
    wanted = plain(name)
    found = pool.run(train, 2, replace(run, key=KEYS[plan]), str(tmp_path), timeout=200)
    assert_equal(found, wanted)
    if name == "early stopping":
        assert found[0].steps == 2
    if name == "frozen":
        before = {key: value.numpy() for key, value in model_of(run).state_dict().items()}
        same = {key for key, value in found[0].weights.items() if np.array_equal(value, before[key])}
        assert same == {key for key in same if key.startswith(run.frozen) or key == "lm_head.weight"}
        assert 0 < len(same) < len(before)


STAGES: Mapping[str, Mapping[str, Any]] = {
    "ZeRO 1": {"stage": 1},
    "ZeRO 2": {"stage": 2},
    "ZeRO 3": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True},
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_kept(pool: Pool, tmp_path: Path, stage: str) -> None:
    run = replace(RUNS["SGD"], config={"zero_optimization": STAGES[stage]})
    wanted = pool.run(train, 2, run, str(tmp_path / "without"), timeout=200)
    found = pool.run(train, 2, replace(run, key={}), str(tmp_path / "with"), timeout=200)
    assert_equal(found, wanted)
    assert len(wanted[0].norms) == 3


def test_a_model_that_was_read_for_the_stage(pool: Pool, tmp_path: Path) -> None:
    """With ZeRO-3 it is divided as it is read."""
    stage = STAGES["ZeRO 3"]
    run = Run("llama", pretrained=True, arguments={**SGD, "max_steps": 2}, config={"zero_optimization": stage})
    wanted = pool.run(train, 2, run, str(tmp_path / "without"), timeout=200)
    found = pool.run(train, 2, replace(run, key={}), str(tmp_path / "with"), timeout=200)
    assert_equal(found, wanted)


def test_the_stage_may_be_left_to_the_plan(
    pool: Pool, plain: Callable[[str], Sequence[Outcome]], tmp_path: Path
) -> None:  # fmt: skip
    """Without the key accelerate fails where the configuration says no stage, as soon as it saves."""
    run = replace(RUNS["SGD"], config={"zero_optimization": {}})
    with pytest.raises(RankError, match="KeyError: 'stage'"):
        pool.run(train, 2, run, str(tmp_path / "without"), timeout=200)
    assert_equal(pool.run(train, 2, replace(run, key={}), str(tmp_path / "with"), timeout=200), plain("SGD"))


@pytest.mark.parametrize("plan", ["dp2", "pp2"])
def test_a_run_resumes_from_the_middle(pool: Pool, tmp_path: Path, plan: str) -> None:
    arguments = {"max_steps": 4, "gradient_accumulation_steps": 2, **SAVED}
    run = Run("llama", KEYS[plan], arguments=arguments, ragged=True)
    whole = pool.run(train, 2, run, str(tmp_path), timeout=200)
    again = pool.run(train, 2, replace(run, resume="checkpoint-2"), str(tmp_path), timeout=200)
    assert again[0].losses == whole[0].losses
    assert again[0].evaluations == whole[0].evaluations
    assert all(np.array_equal(again[0].weights[name], value) for name, value in whole[0].weights.items())


def test_bfloat16(pool: Pool, tmp_path: Path) -> None:
    run = Run(arguments={**SGD, "bf16": True, "max_steps": 2}, config={"zero_optimization": {"stage": 1}})
    wanted = pool.run(train, 2, run, str(tmp_path / "without"), timeout=200)
    found = pool.run(train, 2, replace(run, key=KEYS["pp2"]), str(tmp_path / "with"), timeout=200)
    assert_equal(found, wanted, relative=2**-6)


def test_times_are_logged_where_there_is_a_plan(pool: Pool, tmp_path: Path) -> None:
    run = Run(arguments={"max_steps": 3, **EVALUATED})
    found, _ = pool.run(train, 2, replace(run, key=KEYS["dp2"]), str(tmp_path / "with"), timeout=200)
    plain, _ = pool.run(train, 2, run, str(tmp_path / "without"), timeout=200)
    trained = [one for one in found.logs if "loss" in one]
    assert len(trained) == 3
    assert all(one["step_seconds"] > 0 for one in trained)
    assert len({one["predicted_step_seconds"] for one in trained}) == 1
    assert 1e-5 < trained[0]["predicted_step_seconds"] < 10
    others = [one for one in [*found.logs, *plain.logs] if one not in trained]
    assert len(others) > 6
    assert [one for one in others if any("step_seconds" in name for name in one)] == []


def test_only_evaluated(pool: Pool) -> None:
    """transformers allows it with ZeRO-3 alone."""
    run = Run(config={"zero_optimization": {"stage": 3}}, evaluated=12)
    wanted, _ = pool.run(evaluate, 2, run, timeout=120)
    found = pool.run(evaluate, 2, replace(run, key={}), timeout=120)
    assert found == pytest.approx([wanted, wanted], rel=1e-5)


REFUSED = {
    "generate": ({}, r"GPT2LMHeadModel\.generate: this rank holds a part of the model"),
    "bf16_full_eval": ({"bf16_full_eval": True}, r"can't be turned to torch\.bfloat16: its plan computes in torch\.f"),
    "neftune": ({"neftune_noise_alpha": 5}, r'the module "transformer\.wte" has the forward hook neftune_post_forward'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(pool: Pool, tmp_path: Path, name: str) -> None:
    arguments, words = REFUSED[name]
    run = Run(key=KEYS["pp2"], arguments={"max_steps": 1, **arguments}, generates=name == "generate")
    with pytest.raises(RankError) as failure:
        pool.run(train, 2, run, str(tmp_path), timeout=120)
    assert len(re.findall(f"FacadeError: .*{words}", str(failure.value))) == 2
