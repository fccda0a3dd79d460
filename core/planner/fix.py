"""Decisions that the user holds: ``tp=4``, ``recompute=full``. What can't be is refused with what could."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from partita.cost.alike import Alike, require_tp
from partita.errors import InputError, PlanError, divisors, listed, nearest
from partita.problem import TARGETS, Problem

COUNTS = ("tp", "pp", "dp", "micro_batch", "micro_batches")
WORDS: Mapping[str, tuple[str, ...]] = {"recompute": ("none", "full"), "schedule": ("1f1b", "gpipe")}
NAMES = (*COUNTS, "zero", *WORDS)


def parse_fix(texts: Iterable[str]) -> dict[str, int | str]:
    """Decisions by name from texts such as ``tp=4``; InputError quotes the text and says what works."""
    found: dict[str, int | str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name.startswith("stage:"):
            raise InputError(f'"{text}": decisions hold for all stages; leave out "{name.split(".")[0]}."')
        if not equals and name in NAMES:
            raise InputError(f'"{text}" has no value; {name}={WORDS.get(name, "1")[0]} is how one is written')
        if name not in NAMES:
            raise InputError(f'"{text}" is no decision.{nearest(name, NAMES)} They are written tp=4.')
        if name in found:
            raise InputError(f'"{text}": {name} is held twice, also as {name}={found[name]}')
        found[name] = _value(text, name, value)
    return found


def _value(text: str, name: str, value: str) -> int | str:
    if name in WORDS:
        if value not in WORDS[name]:
            raise InputError(f'"{text}": {name} is {" or ".join(WORDS[name])}')
        return value
    if not re.fullmatch(r"[-+]?\d{1,9}", value):
        raise InputError(f'"{text}": {name} is a whole number')
    number = int(value)
    if name == "zero" and not 0 <= number <= 3:
        raise InputError(f'"{text}": zero is 0, 1, 2 or 3')
    if name != "zero" and number < 1:
        raise InputError(f'"{text}": {name} is at least 1')
    return number


def check_fix(problem: Problem, groups: Alike) -> None:
    """PlanError for the first held decision that this model, cluster, batch or target can't carry out."""
    held = {name: int(value) for name, value in problem.fix.items() if name not in WORDS}
    devices, blocks, batch = problem.cluster.devices, len(problem.graph.blocks), problem.global_batch
    if "tp" in held:
        require_tp(problem.graph, groups, held["tp"])
    if (pp := held.get("pp", 1)) > blocks:
        idle = devices % blocks if devices >= blocks else 0
        also = f"; pp={blocks} may leave {idle} of the {devices} devices idle" if idle else ""
        raise PlanError(
            f"pp={pp}: {pp} stages need at least {pp} blocks, the model has {blocks}; 1 to {blocks} work{also}"
        )
    product = held.get("tp", 1) * pp * held.get("dp", 1)
    if product > devices:
        parts = " · ".join(f"{name}={held[name]}" for name in ("tp", "pp", "dp") if name in held)
        raise PlanError(f"{parts} needs {product} devices, the cluster has {devices}")
    if batch % (dp := held.get("dp", 1)):
        raise PlanError(f"dp={dp} does not divide the global batch {batch}; {_some(divisors(batch))} do")
    _check_micro(held, batch)
    target = TARGETS[problem.target]
    zeros = target.zero_in_pipeline if pp > 1 else target.zero_alone
    if (zero := held.get("zero", 0)) not in zeros:
        words = f"zero={zero}" + (f" with pp={pp}" if pp > 1 else "")
        raise PlanError(f"{words}: {target.sentence}; here zero={listed(zeros)} can be held")


def _check_micro(held: Mapping[str, int], batch: int) -> None:
    dp = held.get("dp", 1)
    each = batch // dp
    for name in ("micro_batch", "micro_batches"):
        if name in held and each % held[name]:
            share = (
                f"the {each} samples of a replica (global batch {batch}, dp={dp})" if dp > 1 else f"the {batch} samples"
            )
            raise PlanError(f"{name}={held[name]} does not divide {share}; {_some(divisors(each))} do")
    if {"micro_batch", "micro_batches"} <= held.keys() and each % (held["micro_batch"] * held["micro_batches"]):
        raise PlanError(
            f"micro_batch={held['micro_batch']} times micro_batches={held['micro_batches']} does not divide "
            f"{each} samples"
        )


def _some(numbers: list[int]) -> str:
    return (
        listed(numbers) if len(numbers) <= 24 else f"{', '.join(map(str, numbers[:12]))} and others up to {numbers[-1]}"
    )
