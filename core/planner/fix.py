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
WORDS: Mapping[str, tuple[str, ...]] = {"recompute": ("none", "full"), "schedule": ("1f1b", "gpipe", "kfkb")}
NAMES = (*COUNTS, "zero", "sp", *WORDS)
OF_STAGE = re.compile(r"stage:(?P<stage>\d+)\.(?P<name>\w+)")
# Between the names of the first and the last block of a stage.
TO = " … "
# What can be held of one stage.
STAGE_NAMES = ("dp", "tp", "zero", "recompute")


def parse_fix(texts: Iterable[str]) -> dict[str, int | str]:
    """Decisions by name from texts such as ``tp=4``; InputError quotes the text and says what works."""
    found: dict[str, int | str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name.endswith(".json:stages") and not equals:
            found |= _of_plan(text, name.removesuffix(":stages"), found)
            continue
        if name.startswith("stage:"):
            name = _of_stage(text, name)
            if name in found:
                raise InputError(f'"{text}": {name} is held twice, also as {name}={found[name]}')
            found[name] = _value(text, name.partition(".")[2], value)
            continue
        if not equals and name in NAMES:
            raise InputError(f'"{text}" has no value; {name}={WORDS.get(name, "1")[0]} is how one is written')
        if name not in NAMES:
            raise InputError(f'"{text}" is no decision.{nearest(name, NAMES)} They are written tp=4.')
        if name in found:
            raise InputError(f'"{text}": {name} is held twice, also as {name}={found[name]}')
        found[name] = _value(text, name, value)
    return found


def _of_stage(text: str, name: str) -> str:
    """The name, if it is of one stage and of a decision that single stages have."""
    match = OF_STAGE.fullmatch(name)
    if match is None or match["name"] not in STAGE_NAMES:
        raise InputError(f'"{text}": of one stage {listed(STAGE_NAMES)} can be held, written stage:2.zero=1')
    return f"stage:{int(match['stage'])}.{match['name']}"


def _of_plan(text: str, path: str, found: Mapping[str, int | str]) -> dict[str, int | str]:
    """What a plan's file decided of its stages: their number, blocks, dp and tp."""
    from partita.plan import load_plan

    stages = load_plan(path).stages
    if twice := [name for name in found if name == "pp" or name.startswith("stage:")]:
        raise InputError(f'"{text}": {twice[0]}={found[twice[0]]} is held too; the plan says it')
    if len(sizes := sorted({len(stage.devices) for stage in stages})) > 1:
        raise InputError(f'"{text}": its stages have {listed(sizes)} devices; stages of one size can be held')
    held: dict[str, int | str] = {"pp": len(stages)}
    for number, stage in enumerate(stages):
        held[f"stage:{number}.blocks"] = f"{stage.blocks[0]}{TO}{stage.blocks[-1]}"
        held |= {f"stage:{number}.dp": stage.dp, f"stage:{number}.tp": stage.tp}
    return held


def _value(text: str, name: str, value: str) -> int | str:
    if name in WORDS:
        if value not in WORDS[name]:
            raise InputError(f'"{text}": {name} is {", ".join(WORDS[name][:-1])} or {WORDS[name][-1]}')
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


def of_stages(fix: Mapping[str, int | str]) -> dict[int, dict[str, int | str]]:
    """By the index of a stage, what is held of it: dp, tp, zero, recompute, blocks."""
    found: dict[int, dict[str, int | str]] = {}
    for name, value in fix.items():
        if match := OF_STAGE.fullmatch(name):
            found.setdefault(int(match["stage"]), {})[match["name"]] = value
    return found


def held_devices(fix: Mapping[str, int | str]) -> int:
    """Of how many devices a number must be a multiple that keeps what is held of tp, pp, dp, cp and ep."""
    return prod(int(fix.get(name, 1)) for name in PARALLEL)


def says_all_devices(fix: Mapping[str, int | str]) -> bool:
    """Whether what is held leaves no choice of their number."""
    return {"tp", "pp", "dp"} <= fix.keys()


def unkept(problem: Problem) -> PlanError:
    """The error where no plan at all keeps everything that is held."""
    words = ", ".join(f"{name}={value}" for name, value in problem.fix.items())
    why, shared = TARGETS[problem.target].sentence, problem.graph.shared_parameters
    stages = of_stages(problem.fix).values()
    if shared and any(len({held[name] for held in stages if name in held}) > 1 for name in ("tp", "dp")):
        name, users = next(iter(shared.items()))
        why = f'stages that share a parameter have one tp, and blocks {listed(users)} share "{name}"'
    return PlanError(
        f"no plan for {problem.cluster.devices} devices, global batch {problem.global_batch} and "
        f"{len(problem.graph.blocks)} blocks keeps all of {words} ({why})"
    )


def check_fix(problem: Problem, groups: Alike) -> None:
    """PlanError for the first held decision that this model, cluster, batch or target can't carry out."""
    whole = {name: value for name, value in problem.fix.items() if not name.startswith("stage:")}
    held = {name: int(value) for name, value in whole.items() if name not in WORDS}
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
    _check_stages(problem)
    _check_inside(problem, groups, held)
    target = TARGETS[problem.target]
    if whole.get("schedule") == "kfkb" and not target.graphs:
        graphs = listed([name for name, other in TARGETS.items() if other.graphs])
        raise PlanError(
            f"schedule=kfkb with target {problem.target}: stages are a chain there; 1f1b and gpipe can be held, and "
            f"targets {graphs} have kfkb"
        )
    zeros = target.zero_in_pipeline if pp > 1 else target.zero_alone
    if (zero := held.get("zero", 0)) not in zeros:
        words = f"zero={zero}" + (f" with pp={pp}" if pp > 1 else "")
        raise PlanError(f"{words}: {target.sentence}; here zero={listed(zeros)} can be held")


def _check_stages(problem: Problem) -> None:
    """PlanError for what is held of a single stage and can't be."""
    names, target, pp = [block.name for block in problem.graph.blocks], TARGETS[problem.target], problem.fix.get("pp")
    stages = of_stages(problem.fix)
    for stage, held in sorted(stages.items()):
        name, value = next(iter(held.items()))
        said = f"stage:{stage}.{name}={value}"
        if pp is None:
            raise PlanError(f"{said}: of how many stages? Hold pp too, at least pp={stage + 1}")
        if stage >= int(pp):
            raise PlanError(f"{said}: pp={pp} has the stages 0 to {int(pp) - 1}")
        for name in ("dp", "tp", "zero"):
            if name in held and problem.target != "partita" and len(stages) < int(pp):
                raise PlanError(
                    f"stage:{stage}.{name}={held[name]}: for target {problem.target} all stages are alike in {name}; "
                    f"hold {name}={held[name]}, or plan for --target partita"
                )
        if held.get("zero", 0) not in target.zero_in_pipeline:
            raise PlanError(f"stage:{stage}.zero={held['zero']}: {target.sentence}")
        for block in str(held["blocks"]).split(TO) if "blocks" in held else ():
            if block not in names:
                raise PlanError(f'stage {stage} begins or ends with "{block}", and the model has no such block')


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
