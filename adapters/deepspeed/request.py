"""What the user's DeepSpeed configuration asks of a plan, in the loop's terms: each rank brings its own batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.errors import InputError

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# Optimizers by the memory of their state; whatever isn't listed keeps two moments, like Adam.
STATELESS = ("sgd",)


@dataclass(frozen=True)
class Request:
    """``micro``: samples of a rank's call; ``accumulation``: calls in a step; ``zero``: the ZeRO stage that is written
    down, None where none is."""

    micro: int
    accumulation: int
    precision: str
    optimizer: str
    zero: int | None
    recompute: bool = False

    def call_samples(self, ranks: int) -> int:
        """Samples of one call of all ranks."""
        return self.micro * ranks


def read_request(config: Mapping[str, Any], ranks: int, optimizer: object, recompute: bool) -> Request:
    """Read the configuration. InputError, with the numbers, where it doesn't say how large a batch is or doesn't close,
    and for what a plan can't be made with."""
    micro, accumulation = _batch(config, ranks)
    zero = _section(config, "zero_optimization").get("stage")
    if isinstance(zero, bool) or zero not in (None, 0, 1, 2, 3):
        raise InputError(f'"zero_optimization.stage": {zero!r}; it is 0, 1, 2 or 3')
    for key, words in (
        ("tensor_parallel", 'its "autotp_size" would cut what the plan cuts; "partita": {"fix": {"tp": …}} says tp'),
        ("sequence_parallel_size", "plans have no sequence parallelism yet"),
        ("hybrid_engine", "its engine would replace the plan's"),
        ("pipeline", 'its stages are the plan\'s: "partita": {"fix": {"pp": …}} says how many'),
        ("compression_training", "it rewrites the modules, and the plan runs the model's ops"),
    ):
        value = config.get(key)
        on = value.get("autotp_size", value.get("enabled", True)) if isinstance(value, Mapping) else value
        if value and on and (on is True or on != 1):
            raise InputError(f'"{key}" and "partita" can\'t be in one configuration: {words}. Remove one of the two')
    return Request(micro, accumulation, _precision(config), _optimizer(config, optimizer), zero, recompute)


def _batch(config: Mapping[str, Any], ranks: int) -> tuple[int, int]:
    """Samples of a rank's call, calls in a step: total = micro · accumulation · ranks, completed as DeepSpeed does."""
    values = {key: config.get(key) for key in BATCH}
    for key, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            hint = "only the Trainer and accelerate fill it in" if value == "auto" else "at least 1 is needed"
            raise InputError(f'"{key}": {value!r}; {hint}')
    total, micro, accumulation = (values[key] for key in BATCH)
    if micro is None and total is None:
        raise InputError(f'the configuration has neither "{BATCH[0]}" nor "{BATCH[1]}"; one of them is needed')
    if micro is not None and accumulation is None:
        accumulation = 1 if total is None else total // (micro * ranks)
    elif micro is None:
        accumulation = accumulation or 1
        assert total is not None
        micro = total // (accumulation * ranks)
    assert micro is not None
    assert accumulation is not None
    if total is not None and total != micro * accumulation * ranks:
        product = f"{micro} · {accumulation} · {ranks} = {micro * accumulation * ranks}"
        raise InputError(
            f'"{BATCH[0]}": {total} is not micro-batch · accumulation · ranks ({product}); leave one of the keys out'
        )
    return micro, accumulation


def _precision(config: Mapping[str, Any]) -> str:
    on = [name for name in ("bf16", "fp16") if _section(config, name).get("enabled")]
    if len(on) > 1:
        raise InputError("bf16 and fp16 are both enabled; one of them is needed at most")
    return on[0] if on else "fp32"


def _optimizer(config: Mapping[str, Any], optimizer: object) -> str:
    name = _section(config, "optimizer").get("type") if optimizer is None else type(optimizer).__name__
    return "sgd" if str(name).lower() in STATELESS else "adam"


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name) or {}
    if not isinstance(found, Mapping):
        raise InputError(f'"{name}": {found!r}; an object is needed')
    return found
