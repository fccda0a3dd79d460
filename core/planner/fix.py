"""Decisions that the user holds: ``tp=4``, ``recompute=full``. What can't be is refused with what could."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

from partita.cost.alike import Alike, require_tp
from partita.errors import InputError, PlanError, divisors, listed, nearest
from partita.problem import TARGETS, Problem

COUNTS = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "micro_batches")
# What devices are divided among.
PARALLEL = ("tp", "pp", "dp", "cp", "ep")
WORDS: Mapping[str, tuple[str, ...]] = {"recompute": ("none", "full"), "schedule": ("1f1b", "gpipe")}
NAMES = (*COUNTS, "zero", "sp", *WORDS)


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
    if name == "sp" and number not in (0, 1):
        raise InputError(f'"{text}": sp is 0 or 1: whether the devices of tp divide the tokens too')
    if name not in ("zero", "sp") and number < 1:
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
    parallel = {name: held[name] for name in PARALLEL if name in held}
    if (product := prod(parallel.values())) > devices:
        parts = " · ".join(f"{name}={size}" for name, size in parallel.items())
        raise PlanError(f"{parts} needs {product} devices, the cluster has {devices}")
    if batch % (dp := held.get("dp", 1)):
        raise PlanError(f"dp={dp} does not divide the global batch {batch}; {_some(divisors(batch))} do")
    _check_micro(held, batch)
    _check_inside(problem, groups, held)
    target = TARGETS[problem.target]
    zeros = target.zero_in_pipeline if pp > 1 else target.zero_alone
    if (zero := held.get("zero", 0)) not in zeros:
        words = f"zero={zero}" + (f" with pp={pp}" if pp > 1 else "")
        raise PlanError(f"{words}: {target.sentence}; here zero={listed(zeros)} can be held")


def _check_inside(problem: Problem, groups: Alike, held: Mapping[str, int]) -> None:
    """Axes inside a copy: the tokens, and the experts."""
    cp, ep, sp = held.get("cp", 1), held.get("ep", 1), held.get("sp", 0)
    said = ", ".join(f"{name}={held[name]}" for name in ("cp", "ep", "sp") if held.get(name, 0) > (name != "sp"))
    if not said:
        return
    if problem.target != "partita":
        raise PlanError(f"{said}: target {problem.target} doesn't run that; --target partita does")
    seq, tp = problem.graph.seq, held.get("tp", 1)
    if cp > 1 or sp:
        if seq is None:
            raise PlanError(f'{said}: model "{problem.graph.name}" has no sequence that could be divided')
        if sp and held.get("tp") == 1:
            raise PlanError("sp=1 divides the tokens over the devices of tp, and tp=1 is held; tp=2 or more works")
        # Each device of a context has seq / cp tokens, and of these tp devices divide each part once more.
        if seq % (step := cp * tp if sp else cp):
            words = " · ".join(f"{name}={size}" for name, size in (("cp", cp), ("tp", tp if sp else 1)) if size > 1)
            near = [length for length in (seq // step * step, seq // step * step + step) if length]
            raise PlanError(
                f"{words}{' with sp=1' if sp else ''} does not divide the sequence of {seq} tokens (remainder "
                f"{seq % step} of {step}); {listed(near)} work"
            )
    if ep > 1:
        sizes = {cut.size for classes in groups.classes.values() for cut in classes if cut.name == "experts"}
        if not sizes:
            raise PlanError(f'ep={ep}: model "{problem.graph.name}" has no experts; leave it out')
        if cp > 1 or sp or tp > 1:
            raise PlanError(f"ep={ep} goes with none of tp, cp and sp in this search; hold ep alone")
        if odd := [size for size in sorted(sizes) if size % ep]:
            raise PlanError(f"ep={ep} does not divide experts={odd[0]}; {_some(divisors(odd[0]))} do")


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
