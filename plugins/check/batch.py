"""Batch arithmetic: train batch = micro-batch · accumulation · dp, with dp = devices / (tp · pp · sp).

What is missing is completed as the framework completes it; what doesn't close is refused with every single change that
would close it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.errors import divisors
from partita.plugins.check.finding import Finding, problem, warning
from partita.plugins.check.settings import Batch, Settings


def completed(settings: Settings) -> Settings:
    """The settings with the numbers of the batch that follow from the others; None stays where nothing follows."""
    micro, accumulation, total = settings.written.micro, settings.written.accumulation, settings.written.total
    dp = settings.counted
    if dp is not None:
        if total and micro and not accumulation:
            accumulation = _exact(total, micro * dp)
        elif total and accumulation and not micro:
            micro = _exact(total, accumulation * dp)
        elif total and not micro and settings.framework == "deepspeed":
            micro = _exact(total, dp)
            accumulation = 1 if micro else None
        elif micro and not total:
            accumulation = accumulation or 1
            total = micro * accumulation * dp
    return replace(settings, batch=Batch(micro, accumulation, total))


def _exact(number: int, by: int) -> int | None:
    return number // by if number % by == 0 else None


def batch_findings(settings: Settings) -> Iterator[Finding]:
    """What doesn't close, in the terms of the file."""
    written, dp = settings.written, settings.counted
    micro, accumulation, total = written.micro, written.accumulation, written.total
    if not micro and not total:
        if settings.framework == "deepspeed" and not settings.auto and not settings.trainer:
            yield warning(
                settings.main,
                "neither train_batch_size nor train_micro_batch_size_per_gpu is written: DeepSpeed itself stops, only "
                "the Trainer and accelerate can say them",
            )
        return
    if not total:
        return
    if micro and accumulation:
        yield from _three(settings, micro, accumulation, total)
    elif dp is not None:
        yield from _two(settings, dp, total)


def _three(settings: Settings, micro: int, accumulation: int, total: int) -> Iterator[Finding]:
    dp, keys, place = settings.counted, settings.keys, settings.place("total")
    each = micro * accumulation
    replicas = _exact(total, each)
    each_device = settings.model_parallel if settings.counted == settings.dp else settings.pp * settings.sp
    devices = [] if replicas is None else [f"dp {replicas} ({replicas * each_device} devices)"]
    if dp is None:
        if settings.devices is None and replicas is None:
            below, above = total // each * each, (total // each + 1) * each
            yield problem(
                place,
                f"{keys['total']} {total} is not {keys['micro']} {micro} · {keys['accumulation']} {accumulation} = "
                f"{each} times any number of replicas",
                *(f"{keys['total']}: {value}" for value in (below, above) if value),
            )  # fmt: skip
        return
    if total == each * dp:
        return
    works = []
    if changed := _exact(total, micro * dp):
        works.append(f"{keys['accumulation']}: {changed}")
    if changed := _exact(total, accumulation * dp):
        works.append(f"{keys['micro']}: {changed}")
    works.append(f"{keys['total']}: {each * dp}")
    yield problem(
        place,
        f"{keys['total']} {total} is not {keys['micro']} {micro} · {keys['accumulation']} {accumulation} · dp {dp} = "
        f"{each * dp}{_origin(settings)}",
        *works, *devices,
    )  # fmt: skip


def _two(settings: Settings, dp: int, total: int) -> Iterator[Finding]:
    """The train batch with one of the others, or alone: it must divide."""
    keys, written = settings.keys, settings.written
    name = "micro" if written.micro else "accumulation"
    value = written.micro or written.accumulation or 1
    if total % (value * dp) == 0:
        return
    step = value * dp
    near = [number for number in (total // step * step, (total // step + 1) * step) if number]
    factor = f"{keys[name]} {value} · dp {dp} = {step}" if value > 1 or written.micro else f"dp {dp}"
    works = [f"{keys['total']}: {number}" for number in near]
    if total % dp == 0 and value > 1:
        choices = divisors(total // dp)
        close = {max(c for c in choices if c < value), *[c for c in choices if c > value][:1]}
        works += [f"{keys[name]}: {choice}" for choice in sorted(close)]
    yield problem(
        settings.place("total"), f"{keys['total']} {total} is not divisible by {factor}{_origin(settings)}", *works
    )


def _origin(settings: Settings) -> str:
    """Where dp comes from, which no framework's message shows."""
    sizes = (("tp", settings.tp), ("pp", settings.pp), ("sp", settings.sp))
    parts = [f"{name} {size}" for name, size in sizes if size > 1]
    devices = f"{settings.devices} device{'' if settings.devices == 1 else 's'}"
    if settings.counted != settings.dp:
        return f" (dp = {devices}: with AutoTP DeepSpeed takes every process for a replica here)"
    return f" (dp = {devices} / ({' · '.join(parts)}))" if parts else f" (dp = {devices})"
