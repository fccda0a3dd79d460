"""Combinations that the frameworks refuse, and settings that have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from partita.plugins.check.document import Document
from partita.plugins.check.finding import Finding, note, problem, warning
from partita.plugins.check.settings import Settings

# Optimizers that DeepSpeed's ZeRO takes without zero_allow_untested_optimizer.
TESTED = frozenset({"adam", "adamw", "adagrad", "lion", "muon"})
# Switches that DeepSpeed takes only with ZeRO.
SHARDED = (
    "fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states",
)  # fmt: skip


def pipeline_findings(settings: Settings) -> Iterator[Finding]:
    """ZeRO 2 and 3 with a pipeline; the Trainer with a pipeline."""
    pp, zero, dp = settings.pp, settings.zero, settings.dp
    if settings.framework != "deepspeed" or pp == 1:
        return
    place = settings.place("zero")
    if zero >= 2:
        loses = f"; stage 1 divides the optimizer's states by dp {dp} and keeps gradients whole" if dp else ""
        if dp == 1:
            steps = settings.batch.accumulation
            loses = f"; dp is 1, so any ZeRO stage holds the same bytes and nothing is lost (accumulation {steps})"
        yield problem(
            place,
            f"zero_optimization.stage {zero} with a pipeline of {pp} stages: DeepSpeed's pipeline takes 0 and 1{loses}",
            "zero_optimization.stage: 1", "pp 1",
        )  # fmt: skip
    if settings.trainer and not settings.planned:
        yield problem(
            settings.place("pp"),
            f"pp {pp} with TrainingArguments: the Trainer runs no DeepSpeed pipeline by itself", "pp 1",
            '"partita": {} in the DeepSpeed configuration',
        )  # fmt: skip


def precision_findings(document: Document, settings: Settings) -> Iterator[Finding]:
    """fp16 and bf16 both; loss scaling that has no effect."""
    if document.kind == "deepspeed":
        on = [name for name in ("fp16", "bf16") if _on(document, settings, name)]
        if len(on) == 2:
            yield problem(
                document.place("bf16.enabled"), "fp16 and bf16 are both enabled, and DeepSpeed refuses to start",
                "fp16.enabled: false", "bf16.enabled: false",
            )  # fmt: skip
        fp16 = document.get("fp16")
        scaling = sorted(fp16.keys() - {"enabled", "type"}) if isinstance(fp16, dict) else []
        if on == ["bf16"] and scaling:
            first = f"fp16.{scaling[0]}"
            listed = ", ".join(f"fp16.{key}" for key in scaling)
            yield note(document.place(first), f"{listed}: no effect in bf16, whose loss scale is 1")
    elif document.kind == "training_arguments":
        if document.get("fp16") is True and document.get("bf16") is True:
            yield problem(document.place("bf16"), "fp16 and bf16 are both true", "fp16: false", "bf16: false")
    elif "--fp16" in document.values and "--bf16" in document.values:
        yield problem(document.place("--bf16"), "--fp16 and --bf16 are both given", "--fp16", "--bf16")


def _on(document: Document, settings: Settings, name: str) -> bool:
    value = document.get(f"{name}.enabled")
    return (settings.auto.get(f"{name}.enabled") if value == "auto" else value) is True


def deepspeed_findings(document: Document, settings: Settings) -> Iterator[Finding]:
    """What DeepSpeed's own checks refuse when it starts, and keys without effect at this ZeRO stage."""
    zero = settings.zero
    if settings.counted != settings.dp and settings.tp > 1:
        yield note(
            document.place("tensor_parallel.autotp_size"),
            f"AutoTP: DeepSpeed's batch arithmetic takes all {settings.devices} processes for replicas, of which "
            f"{settings.dp} exist: a step of train_batch_size {settings.batch.total} is {settings.samples} samples",
        )
    if document.get("gradient_allreduce_op") == "sum" and zero == 3:
        message = 'gradient_allreduce_op "sum" with ZeRO stage 3: DeepSpeed refuses it'
        yield problem(document.place("gradient_allreduce_op"), message, 'gradient_allreduce_op: "mean"')
    if document.get("managed_gradient_accumulation") is False and settings.pp > 1:
        place = document.place("managed_gradient_accumulation")
        yield problem(place, f"managed_gradient_accumulation false with a pipeline of {settings.pp} stages is refused",
                      "leave out managed_gradient_accumulation")  # fmt: skip
    for path in SHARDED:
        if document.get(path) is True and zero == 0:
            yield problem(document.place(path), f"{path} needs ZeRO stage 1, 2 or 3; the stage is 0")
    kind = document.get("optimizer.type")
    allowed = document.get("zero_allow_untested_optimizer")
    if isinstance(kind, str) and zero and kind.lower() not in TESTED and not allowed:
        message = f"{kind} is an optimizer that ZeRO (stage {zero}) wasn't tested with, and DeepSpeed refuses it"
        mends = ("zero_allow_untested_optimizer: true", "zero_optimization.stage: 0")
        yield problem(document.place("optimizer.type"), message, *mends)
    if document.get("optimizer.params.max_grad_norm"):
        place = document.place("optimizer.params.max_grad_norm")
        message = "max_grad_norm is no parameter of the optimizer: nothing is clipped by it"
        yield warning(place, message, "gradient_clipping")
    for what, stages in (("offload_optimizer", (1, 2, 3)), ("offload_param", (3,))):
        path = f"zero_optimization.{what}"
        if document.get(f"{path}.device") in ("cpu", "nvme") and zero not in stages:
            works = " or ".join(f"zero_optimization.stage: {stage}" for stage in stages)
            yield warning(document.place(path), f"{path} has no effect with ZeRO stage {zero}", works)


def megatron_findings(document: Document, settings: Settings) -> Iterator[Finding]:
    """What Megatron's own checks refuse when it starts."""
    values = document.values
    sharding = {"--use-distributed-optimizer", "--use-megatron-fsdp"} & values.keys()
    if "--overlap-param-gather" in values and not sharding:
        place = document.place("--overlap-param-gather")
        message = "--overlap-param-gather works only with the distributed optimizer"
        yield problem(place, message, "--use-distributed-optimizer")
    if "--overlap-param-gather" in values and "--overlap-grad-reduce" not in values:
        place = document.place("--overlap-param-gather")
        yield problem(place, "--overlap-param-gather needs --overlap-grad-reduce", "--overlap-grad-reduce")
    if "--sequence-parallel" in values and settings.tp == 1:
        place = document.place("--sequence-parallel")
        yield warning(place, "--sequence-parallel has no effect with one tensor-parallel rank")
    if settings.chunks > 1 and settings.pp == 1:
        place = document.place(
            next(flag for flag in values if flag.startswith(("--num-virtual", "--num-layers-per-virtual")))
        )
        yield problem(place, f"{place.path} needs a pipeline; pp is 1", f"leave out {place.path}")
    if values.get("--recompute-granularity") == "full" and "--recompute-method" not in values:
        place = document.place("--recompute-granularity")
        message = "--recompute-granularity full needs --recompute-method"
        yield problem(place, message, "--recompute-method uniform --recompute-num-layers 1")
