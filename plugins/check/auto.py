"""Two sources of truth: what stands in a DeepSpeed configuration against what the Trainer is told, and what each
``"auto"`` will be. The pairs are those that transformers itself fills in and compares when training starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from partita.plugins.check.document import Document
from partita.plugins.check.finding import Finding, note, problem, warning
from partita.plugins.check.tables import table

Values = Mapping[str, Any]


def training_arguments(document: Document) -> dict[str, Any]:
    """All TrainingArguments: what the file says, and the defaults."""
    return {**table("training_arguments")["keys"], **document.values}


# DeepSpeed's path, the names in TrainingArguments, and the value that the Trainer means.
PAIRS: tuple[tuple[str, str, Callable[[Values], Any]], ...] = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size", lambda a: a["per_device_train_batch_size"]),
    ("gradient_accumulation_steps", "gradient_accumulation_steps", lambda a: a["gradient_accumulation_steps"]),
    ("gradient_clipping", "max_grad_norm", lambda a: a["max_grad_norm"]),
    ("optimizer.params.lr", "learning_rate", lambda a: a["learning_rate"]),
    ("optimizer.params.betas", "adam_beta1 and adam_beta2", lambda a: [a["adam_beta1"], a["adam_beta2"]]),
    ("optimizer.params.eps", "adam_epsilon", lambda a: a["adam_epsilon"]),
    ("optimizer.params.weight_decay", "weight_decay", lambda a: a["weight_decay"]),
    ("scheduler.params.warmup_max_lr", "learning_rate", lambda a: a["learning_rate"]),
    ("fp16.enabled", "fp16", lambda a: bool(a["fp16"] or a["fp16_full_eval"])),
    ("bf16.enabled", "bf16", lambda a: bool(a["bf16"] or a["bf16_full_eval"])),
)
# What accelerate fills in from its own settings.
ACCELERATE = frozenset(
    f"zero_optimization.{key}"
    for key in (
        "stage", "offload_optimizer.device", "offload_param.device", "offload_optimizer.nvme_path",
        "offload_param.nvme_path", "stage3_gather_16bit_weights_on_model_save", "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
    )
)  # fmt: skip
# Known only when training starts, or from the model's width.
LATER = {
    "scheduler.params.total_num_steps": "the number of training steps",
    "scheduler.params.warmup_num_steps": "warmup_steps, at least 1",
}


def compare(
    deepspeed: Document, trainer: Document, devices: int | None, hidden: int | None
) -> tuple[dict[str, Any], list[Finding]]:
    """The value of each ``"auto"`` by path, and a finding for each value that stands in both and differs.

    The train batch needs the number of processes, the bucket sizes the model's width; without them they stay open.
    """
    arguments = training_arguments(trainer)
    auto: dict[str, Any] = {}
    findings: list[Finding] = []
    pairs = [(path, names, value(arguments)) for path, names, value in PAIRS]
    sizes = [arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"], devices]
    if all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        micro, steps, processes = sizes
        names = f"per_device_train_batch_size · gradient_accumulation_steps · processes = {micro}·{steps}·{processes}"
        pairs.append(("train_batch_size", names, micro * steps * processes))
    for path, names, value in pairs:
        written = deepspeed.get(path)
        if written == "auto":
            auto[path] = value
        elif written is not None and not _same(written, value):
            findings.append(
                problem(
                    deepspeed.place(path),
                    f"{path} is {_text(written)} here and {_text(value)} in {trainer.file} ({names}): "
                    "the Trainer refuses to start",
                    f'{path}: "auto"', f"{path}: {_text(value)}",
                )
            )  # fmt: skip
    auto |= _filled(deepspeed, hidden)
    findings += _nobody_fills(deepspeed, auto)
    if not deepspeed.has("gradient_accumulation_steps") and arguments["gradient_accumulation_steps"] != 1:
        steps = arguments["gradient_accumulation_steps"]
        findings.append(
            warning(
                deepspeed.place("gradient_accumulation_steps"),
                f"gradient_accumulation_steps isn't written: accelerate puts in 1, and {trainer.file} says {steps}",
                'gradient_accumulation_steps: "auto"',
            )
        )
    return auto, findings


def _filled(deepspeed: Document, hidden: int | None) -> dict[str, Any]:
    """What the Trainer puts in for ``"auto"`` and compares with nothing."""
    found: dict[str, Any] = {path: words for path, words in LATER.items() if deepspeed.get(path) == "auto"}
    if deepspeed.get("scheduler.params.warmup_min_lr") == "auto":
        found["scheduler.params.warmup_min_lr"] = 0
    stage3 = deepspeed.get("zero_optimization.stage") == 3
    for key, value, always in (
        ("reduce_bucket_size", lambda h: h * h, True),
        ("stage3_prefetch_bucket_size", lambda h: int(0.9 * h * h), False),
        ("stage3_param_persistence_threshold", lambda h: 10 * h, False),
    ):
        path = f"zero_optimization.{key}"
        if deepspeed.get(path) == "auto" and (always or stage3):
            found[path] = "from the model's width" if hidden is None else value(hidden)
    return found


def _nobody_fills(deepspeed: Document, auto: Mapping[str, Any]) -> list[Finding]:
    """Each ``"auto"`` that neither transformers nor accelerate replaces: DeepSpeed takes its own default, or stops."""
    known = {path for path, *_ in PAIRS} | {"train_batch_size"} | ACCELERATE | auto.keys()
    return [
        warning(deepspeed.place(path), f'"auto" at {path} is filled in by nobody: write a value, or leave out the key')
        for path in _autos(deepspeed.values, ())
        if path not in known
    ]


def left_open(deepspeed: Document) -> list[Finding]:
    """One note for all ``"auto"`` of a file that comes without TrainingArguments."""
    paths = list(_autos(deepspeed.values, ()))
    if not paths:
        return []
    return [
        note(
            deepspeed.place(paths[0]),
            f'"auto" is filled in by the Trainer or accelerate and by nobody else: {", ".join(paths)}',
            "give the TrainingArguments too, and their values are shown",
        )
    ]


def _autos(values: Mapping[str, Any], above: tuple[str, ...]) -> list[str]:
    found = []
    for key, value in values.items():
        if isinstance(value, Mapping) and (above or key != "partita"):
            found += _autos(value, (*above, key))
        elif value == "auto":
            found.append(".".join((*above, key)))
    return found


def _same(written: Any, value: Any) -> bool:
    """Equal as transformers compares them: 1 and 1.0 are, a list and its items in order are, 1e-5 in quotes isn't."""
    return bool(written == value) and isinstance(written, bool) == isinstance(value, bool)


def _text(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}[value] if isinstance(value, bool | None) else str(value)
