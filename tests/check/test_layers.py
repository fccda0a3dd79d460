"""Layers of Megatron's stages, against Megatron-core's own count; pipelines that DeepSpeed refuses."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from partita.errors import divisors
from partita.plugins.check.document import Document
from partita.plugins.check.layers import EMBEDDING, FIRST, LAST, LAYOUT, LOSS, best_ends, layers_of_stages
from tests.check.command import Check, paths, problems


def test_c01_layers_lost(check: Check) -> None:
    found = check({"args.txt": "--num-layers 30 --pipeline-model-parallel-size 4\n"}, status=1)
    (finding,) = problems(found)
    assert (finding["path"], finding["line"]) == ("--pipeline-model-parallel-size", 1)
    assert "30 = 4·7 + 2" in finding["message"]
    assert "layers 28, 29" in finding["message"]
    assert finding["works"] == [
        "--pipeline-model-parallel-size 1, 2, 3, 5, 6, 10, 15, 30",
        "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7 (stages 7, 8, 8, 7)",
    ]


def test_c01_what_works_is_accepted(check: Check) -> None:
    for pp in divisors(30):
        found = check({"args.txt": f"--num-layers 30 --pipeline-model-parallel-size {pp}\n"}, status=0)
        assert found["resolved"]["layers_per_stage"] == [30 // pp] * pp
    ends = "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7"
    found = check({"args.txt": f"--num-layers 30 --pipeline-model-parallel-size 4 {ends}\n"}, status=0)
    assert found["resolved"]["layers_per_stage"] == [7, 8, 8, 7]


def arguments(values: dict[str, str | None]) -> Document:
    return Document("args.txt", "megatron", values, {})


@pytest.mark.slow
def test_the_split_is_megatrons_own() -> None:
    """Every combination of small sizes: the same layers on each stage, and none where Megatron-core refuses."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    taken = refused = 0
    sizes = (None, 1, 2, 3)
    for layers, pp, first, last, embedding, loss in product(
        (4, 6, 7), (1, 2, 3, 4), sizes, sizes, (False, True), (False, True)
    ):
        values: dict[str, str | None] = {}
        values |= {FIRST: str(first)} if first else {}
        values |= {LAST: str(last)} if last else {}
        values |= {EMBEDDING: None} if embedding else {}
        values |= {LOSS: None} if loss else {}
        try:
            config = TransformerConfig(
                num_layers=layers, hidden_size=8, num_attention_heads=2, pipeline_model_parallel_size=pp,
                pipeline_dtype="unused",
                num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last,
                account_for_embedding_in_pipeline_split=embedding, account_for_loss_in_pipeline_split=loss,
            )  # fmt: skip
            own = tuple(get_num_layers_to_build(config, pp_rank=rank) for rank in range(pp))
            own = own if sum(own) == layers and min(own) > 0 else None
        except (ValueError, AssertionError):
            own = None
        split, findings = layers_of_stages(arguments(values), layers, pp)
        assert split == own, (layers, pp, values)
        assert len(findings) == (own is None), (layers, pp, values)
        taken, refused = taken + (own is not None), refused + (own is None)
    assert taken > 60
    assert refused > 300


@pytest.mark.parametrize(
    ("layout", "pp", "split"),
    [
        ("Et|t|tt|L", 4, (1, 1, 2, 0)),
        ("Et|(t|)*2tL", 4, (1, 1, 1, 1)),
        ("Et*2|t*2L", 2, (2, 2)),
        ("E,t|t|t|t,L", 2, (2, 2)),
    ],
)
def test_a_layout_names_every_stage(layout: str, pp: int, split: tuple[int, ...]) -> None:
    assert layers_of_stages(arguments({LAYOUT: layout}), 4, pp) == (split, [])


@pytest.mark.parametrize(
    ("layout", "facts"),
    [
        ("Et|tL", ["2 layers", "4", "2 lost"]),
        ("Et|t*5L", ["6 layers", "2 too many"]),
        ("Et|t|ttL", ["3 stages", "2 pipeline ranks"]),
        ("tt|ttL", ["embedding (E)"]),
        ("Et|tt|tx|L", ['"x"']),
        ("Ett||t|tL", ["stage 1 is empty"]),
        ("(((t*9999)*9999)*9999)*9999", ["none of E, t, m and L"]),
    ],
)
def test_a_layout_that_does_not_add_up(layout: str, facts: list[str]) -> None:
    split, (finding,) = layers_of_stages(arguments({LAYOUT: layout}), 4, 2)
    assert split is None
    assert [fact for fact in facts if fact not in finding.message] == []


def test_the_best_ends_by_brute_force() -> None:
    for layers, pp in product(range(2, 34), range(2, 9)):
        splits = [
            [first, *[middle] * (pp - 2), layers - first - middle * (pp - 2)]
            for first in range(1, layers)
            for middle in (range(1, layers) if pp > 2 else [0])
            if layers - first - middle * (pp - 2) > 0
        ]
        ends = best_ends(layers, pp)
        if not splits:
            assert ends is None
            continue
        assert ends is not None
        first, middle, last = ends
        stages = [first, *[middle] * (pp - 2), last]
        assert sum(stages) == layers
        assert max(stages) == min(max(split) for split in splits)


PIPELINE: dict[str, Any] = {
    "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
    "fp16": {"enabled": True},
}  # fmt: skip


def test_c24_pipeline_with_zero_2(check: Check) -> None:
    found = check({"ds.json": PIPELINE}, "--devices", "2", "--pp", "2", status=1)
    (finding,) = found["findings"]
    assert (finding["severity"], finding["path"]) == ("problem", "zero_optimization.stage")
    assert "takes 0 and 1" in finding["message"]
    assert "nothing is lost (accumulation 2)" in finding["message"]
    assert finding["works"][0] == "zero_optimization.stage: 1"
    assert (found["resolved"]["dp"], found["resolved"]["micro_batches"]) == (1, 2)


@pytest.mark.parametrize(("stage", "pp", "status"), [(0, 2, 0), (1, 2, 0), (2, 1, 0), (3, 1, 0), (3, 2, 1)])
def test_c24_what_the_pipeline_takes(check: Check, stage: int, pp: int, status: int) -> None:
    config = {**PIPELINE, "zero_optimization": {"stage": stage}}
    check({"ds.json": config}, "--devices", "2", "--pp", str(pp), status=status)


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}}, "gradient_allreduce_op"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16.bf16_master_weights_and_grads"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero_optimization": {"stage": 1, "overlap_com": True}}, "zero_optimization.overlap_com"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "bf16.enabled"),
        ({"fp16": {"enabled": True, "type": "bfloat16"}}, "fp16.type"),
        ({"amp": {"enabled": True}}, "amp"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 2}}, "zero_optimization.mics_shard_size"),
        (
            {"train_batch_size": 3, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1},
            "train_batch_size",
        ),
        ({"steps_per_print": 10, "zero_optimization": {"stage": 1}, "fp16": {"enabled": True, "loss_scale": 0}}, None),
        ({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}, None),
        ({"gradient_clipp1ng": 1.0, "_off": 1}, "gradient_clipp1ng"),
    ],
)
def test_what_is_refused_is_what_deepspeed_refuses(check: Check, extra: dict[str, Any], path: str | None) -> None:
    """DeepSpeed's own reading of the same configuration on one process. Only a misspelt key at the top gets past it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = {"train_micro_batch_size_per_gpu": 1, **extra}
    try:
        DeepSpeedConfig(dict(config))
        accepted = True
    except Exception:
        accepted = False
    # DeepSpeed announces its accelerator on stdout when it is first asked for one.
    check.capsys.readouterr()
    found = check({"ds.json": config}, "--devices", "1")
    assert paths(found, "problem") == ([path] if path else [])
    assert accepted == (path in (None, "gradient_clipp1ng"))
