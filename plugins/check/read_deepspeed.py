"""Settings out of a DeepSpeed configuration, out of TrainingArguments, or out of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.plugins.check.auto import compare, left_open, training_arguments
from partita.plugins.check.batch import completed
from partita.plugins.check.document import Document
from partita.plugins.check.finding import Finding, Place, problem
from partita.plugins.check.settings import Asked, Batch, Settings, whole

BATCH = {
    "micro": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
    "total": "train_batch_size",
}
TRAINER_BATCH = {"micro": "per_device_train_batch_size", "accumulation": "gradient_accumulation_steps"}
SGD = frozenset({"sgd", "musgd"})


def read_deepspeed(
    deepspeed: Document | None, trainer: Document | None, asked: Asked, hidden: int | None
) -> tuple[Settings, list[Finding]]:
    """Settings, and what is wrong with the values themselves. One of the two documents is given, or both.

    ``hidden``: the model's width, on which some ``"auto"`` values depend.
    """
    findings: list[Finding] = []
    auto: dict[str, Any] = {}
    if deepspeed and trainer:
        auto, findings = compare(deepspeed, trainer, asked.devices, hidden)
    elif deepspeed:
        findings = left_open(deepspeed)
    if deepspeed:
        value = _Values(deepspeed, auto, findings)
        fields = _state(value) | _parallel(value, asked)
        keys = BATCH
    else:
        assert trainer is not None
        value = _Values(trainer, {}, findings, training_arguments(trainer))
        fields = {"tp": asked.tp or 1, "pp": asked.pp or 1, "precision": _trainer_precision(value.all)}
        keys = TRAINER_BATCH
    main = deepspeed or trainer
    assert main is not None
    written = Batch(**{name: value.whole(path, 1) for name, path in keys.items()})
    places = {name: value.place(path) for name, path in keys.items()} | asked.places(main.file)
    places |= fields.pop("places", {})
    recompute = None
    if trainer:
        arguments = training_arguments(trainer)
        recompute = bool(arguments["gradient_checkpointing"] or arguments["activation_checkpointing"])
    found = Settings(
        framework="deepspeed", main=main.place(), devices=asked.devices, written=written, recompute=recompute,
        seq=asked.seq, trainer=trainer is not None, auto=auto, places=places, keys=keys, **fields,
    )  # fmt: skip
    return completed(found), findings


class _Values:
    """Values by path with ``"auto"`` replaced; a value of the wrong kind gives a finding and None."""

    def __init__(
        self, document: Document, auto: Mapping[str, Any], findings: list[Finding],
        defaults: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        self.document, self.auto, self.findings = document, auto, findings
        self.all = defaults or {}

    def get(self, path: str) -> Any:
        found = self.document.get(path)
        if found == "auto":
            return self.auto.get(path)
        return self.all.get(path) if found is None and not self.document.has(path) else found

    def place(self, path: str) -> Place:
        return self.document.place(path)

    def whole(self, path: str, least: int) -> int | None:
        return whole(self.get(path), self.place(path), least, self.findings)

    def on(self, path: str) -> bool:
        """A switch; what is neither true nor false is a finding."""
        found = self.get(path)
        if found not in (None, True, False):
            self.findings.append(problem(self.place(path), f"{path} is {found!r}; true or false is needed"))
        return found is True


def _parallel(value: _Values, asked: Asked) -> dict[str, Any]:
    """tp, pp and sp: from the file, or from the command line; where both say something else, it is a problem."""
    stages = value.get("pipeline.stages")
    written = {
        "tp": value.whole("tensor_parallel.autotp_size", 0),
        "pp": None if stages in (None, "auto") else value.whole("pipeline.stages", 1),
    }
    paths = {"tp": "tensor_parallel.autotp_size", "pp": "pipeline.stages"}
    found: dict[str, Any] = {"sp": value.whole("sequence_parallel_size", 1) or 1}
    for name, given in (("tp", asked.tp), ("pp", asked.pp)):
        in_file = written[name] or None
        if given and in_file and given != in_file:
            place = value.place(paths[name])
            message = f"{paths[name]} is {in_file}, and --{name} {given} was given; leave out one"
            value.findings.append(problem(place, message))
        found[name] = in_file or given or 1
    found["autotp"] = bool(written["tp"])
    found["places"] = {name: value.place(path) for name, path in paths.items() if written[name]} | {
        "zero": value.place("zero_optimization.stage"), "sp": value.place("sequence_parallel_size"),
        "precision": value.place("bf16.enabled" if value.on("bf16.enabled") else "fp16.enabled"),
    }  # fmt: skip
    return found


def _state(value: _Values) -> dict[str, Any]:
    """ZeRO, offload, precision and optimizer."""
    section = value.get("zero_optimization")
    # The oldest form: true is stage 1.
    zero = int(section) if isinstance(section, bool) else value.whole("zero_optimization.stage", 0)
    if zero is not None and zero > 3:
        place = value.place("zero_optimization.stage")
        value.findings.append(problem(place, f"zero_optimization.stage is {zero}; 0, 1, 2 and 3 exist", "0, 1, 2 or 3"))
        zero = None
    offload = tuple(
        what
        for what in ("optimizer", "param")
        if value.get(f"zero_optimization.offload_{what}.device") in ("cpu", "nvme")
    )
    bf16 = value.on("bf16.enabled") or value.on("bfloat16.enabled")
    precision = "bf16" if bf16 else "fp16" if value.on("fp16.enabled") else "fp32"
    name = str(value.get("optimizer.type") or "adam").lower()
    return {
        "zero": zero or 0, "offload": offload, "precision": precision, "planned": value.document.has("partita"),
        "optimizer": "sgd" if name in SGD else "adam",
    }  # fmt: skip


def _trainer_precision(arguments: Mapping[str, Any]) -> str:
    return "bf16" if arguments.get("bf16") is True else "fp16" if arguments.get("fp16") is True else "fp32"
