"""What a DeepSpeed configuration asks of a plan in a loop."""

from __future__ import annotations

from typing import Any

import pytest

from partita.adapters.deepspeed.request import Request, read_request
from partita.errors import InputError

TOTAL, MICRO, CALLS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def read(config: dict[str, Any], ranks: int = 4, optimizer: object = None) -> Request:
    return read_request(config, ranks, optimizer, recompute=False)


# total, micro, accumulation; on 4 ranks: micro and accumulation, or the words of the refusal.
@pytest.mark.parametrize(
    ("total", "micro", "calls", "wanted"),
    [
        (None, 2, None, (2, 1)),
        (None, 2, 3, (2, 3)),
        (24, None, None, (6, 1)),
        (24, None, 3, (2, 3)),
        (24, 2, None, (2, 3)),
        (24, 2, 3, (2, 3)),
        (24, 3, 3, "24 is not micro-batch · accumulation · ranks (3 · 3 · 4 = 36)"),
        (10, None, None, "10 is not micro-batch · accumulation · ranks (2 · 1 · 4 = 8)"),
        (10, 2, None, "(2 · 1 · 4 = 8)"),
        (2, None, None, "2 is not micro-batch"),
        (2, 4, None, "2 is not micro-batch"),
        (2, None, 3, "2 is not micro-batch"),
        (None, None, None, 'neither "train_batch_size" nor "train_micro_batch_size_per_gpu"'),
        (None, None, 3, "neither"),
        (None, "auto", None, "\"train_micro_batch_size_per_gpu\": 'auto'; only the Trainer and accelerate fill it in"),
        (None, 2.0, None, '"train_micro_batch_size_per_gpu": 2.0; at least 1 is needed'),
        (None, True, None, '"train_micro_batch_size_per_gpu": True'),
        (0, None, None, '"train_batch_size": 0; at least 1'),
        (None, -1, None, '"train_micro_batch_size_per_gpu": -1'),
        (None, 2, 0, '"gradient_accumulation_steps": 0'),
        (None, "2", None, "\"train_micro_batch_size_per_gpu\": '2'"),
    ],
)
def test_batch_arithmetic(total: Any, micro: Any, calls: Any, wanted: Any) -> None:
    config = {key: value for key, value in ((TOTAL, total), (MICRO, micro), (CALLS, calls)) if value is not None}
    if isinstance(wanted, str):
        with pytest.raises(InputError) as caught:
            read(config)
        assert wanted in str(caught.value)
    else:
        found = read(config)
        assert (found.micro, found.accumulation) == wanted
        assert found.call_samples(4) == 4 * wanted[0]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, ("fp32", "adam", None)),
        ({"bf16": {"enabled": True}}, ("bf16", "adam", None)),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, ("fp16", "adam", None)),
        ({"zero_optimization": {"stage": 2}}, ("fp32", "adam", 2)),
        ({"zero_optimization": {"stage": 0}}, ("fp32", "adam", 0)),
        ({"zero_optimization": {}}, ("fp32", "adam", None)),
        ({"zero_optimization": None}, ("fp32", "adam", None)),
        ({"optimizer": {"type": "SGD"}}, ("fp32", "sgd", None)),
        ({"optimizer": {"type": "AdamW"}}, ("fp32", "adam", None)),
        # Said, and not on: nothing that a plan minds.
        ({"tensor_parallel": {"autotp_size": 1}, "sequence_parallel_size": 1}, ("fp32", "adam", None)),
        ({"hybrid_engine": {"enabled": False}, "pipeline": {}}, ("fp32", "adam", None)),
    ],
)
def test_settings(config: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    found = read({MICRO: 1, **config})
    assert (found.precision, found.optimizer, found.zero) == wanted


def test_an_optimizer_that_is_given_counts() -> None:
    import torch

    made = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    assert read({MICRO: 1}, optimizer=made).optimizer == "sgd"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, ["bf16 and fp16 are both enabled"]),
        ({"zero_optimization": {"stage": 4}}, ['"zero_optimization.stage": 4', "0, 1, 2 or 3"]),
        ({"zero_optimization": {"stage": "auto"}}, ["\"zero_optimization.stage\": 'auto'"]),
        ({"zero_optimization": {"stage": [2]}}, ['"zero_optimization.stage": [2]']),
        ({"zero_optimization": {"stage": True}}, ['"zero_optimization.stage": True']),
        ({"zero_optimization": 2}, ['"zero_optimization": 2', "an object is needed"]),
        ({"fp16": True}, ['"fp16": True', "an object is needed"]),
        ({"optimizer": "Adam"}, ["\"optimizer\": 'Adam'"]),
        ({"tensor_parallel": {"autotp_size": 2}}, ['"tensor_parallel"', '"autotp_size"', "Remove one"]),
        ({"sequence_parallel_size": 2}, ['"sequence_parallel_size"', "no sequence parallelism"]),
        ({"hybrid_engine": {"enabled": True}}, ['"hybrid_engine"']),
        ({"pipeline": {"stages": 4}}, ['"pipeline"', '{"fix": {"pp"']),
        ({"compression_training": {"weight_quantization": {}}}, ['"compression_training"']),
    ],
)
def test_what_no_plan_can_be_made_with(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read({MICRO: 1, **config})
    assert [word for word in words if word not in str(caught.value)] == []
