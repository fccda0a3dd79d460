"""The user's own arrangement through the cost model: memory of every stage, time of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from partita.cost.alike import require_tp
from partita.errors import PlanError
from partita.plan import MemoryBytes
from partita.planner.build import stage_memory
from partita.planner.candidates import Candidate
from partita.planner.chain import best_cuts, least_memory
from partita.planner.formula import step_seconds
from partita.planner.numbers import Numbers
from partita.plugins.check.model import layer_blocks
from partita.plugins.check.settings import Settings


@dataclass(frozen=True)
class Priced:
    """``bounds[s]`` is the first block of stage s, ``limits[s]`` the bytes that each of its devices has.

    ``step_seconds`` is None where the batch doesn't close or states are offloaded. ``assumed``: what the file doesn't
    say and was decided here.
    """

    candidate: Candidate
    bounds: tuple[int, ...]
    memory: tuple[MemoryBytes, ...]
    limits: tuple[int, ...]
    step_seconds: float | None
    assumed: tuple[str, ...]

    @property
    def heaviest(self) -> int:
        """The stage whose devices have the least left."""
        return max(range(len(self.memory)), key=lambda stage: self.memory[stage].total - self.limits[stage])


class Unpriced(Exception):
    """The cost model can't say; the message is the reason."""


def candidate_of(settings: Settings) -> Candidate:
    """The arrangement as the planner names one; Unpriced where something is missing or isn't in the model."""
    dp, batch = settings.dp, settings.batch
    if settings.sp > 1:
        raise Unpriced("context parallelism is not in the cost model")
    if settings.sizes.get("ep", 1) > 1 or settings.sizes.get("experts", 1) > 1:
        raise Unpriced("experts are not in the cost model")
    if settings.chunks > 1:
        raise Unpriced("interleaved stages are not in the cost model")
    if dp is None:
        raise Unpriced("how many devices run it isn't known: --devices or --cluster says so")
    if not (batch.micro and batch.accumulation and batch.total):
        raise Unpriced("the batch isn't known: " + ", ".join(settings.keys.values()))
    return Candidate(
        settings.pp, settings.tp, dp, settings.zero, bool(settings.recompute), "1f1b", batch.micro, batch.accumulation
    )


def price(settings: Settings, numbers: Numbers) -> Priced:
    """Memory and time; Unpriced with the reason where the cost model can't say."""
    candidate = candidate_of(settings)
    try:
        require_tp(numbers.problem.graph, numbers.groups, settings.tp)
    except PlanError:
        raise Unpriced(f"tp {settings.tp} doesn't cut this model") from None
    assumed = []
    if settings.recompute is None:
        assumed.append("no recomputation: the file doesn't say")
    bounds = _bounds(settings, numbers, candidate)
    if candidate.pp > 1 and settings.layers is None:
        assumed.append("stages cut as well as can be: the file doesn't say where")
    closes = candidate.micro * candidate.micro_batches * candidate.dp == settings.samples
    timed = closes and not settings.offload
    seconds = step_seconds(numbers.table(candidate, inf), bounds) if timed else None
    if len(numbers.cluster.different_devices()) > 1:
        assumed.append("every stage as fast as on the slowest of the devices, which differ")
    memory = _memory(settings, numbers, candidate, bounds)
    return Priced(candidate, bounds, memory, _limits(numbers, candidate), seconds, tuple(assumed))


def smaller(settings: Settings, numbers: Numbers, priced: Priced) -> Iterator[tuple[str, int, bool]]:
    """Changes that take less memory, with the bytes that the device with the least left then holds, and whether they
    fit: smaller micro-batches, recomputation, both, a higher ZeRO stage, all three."""
    c = priced.candidate
    key = settings.keys["micro"]
    steps: list[tuple[str, Candidate]] = []
    micro = c.micro
    while micro % 2 == 0:
        micro //= 2
        steps.append((f"{key} {micro}, {c.micro // micro * c.micro_batches} micro-batches", _micro(c, micro)))
    least = _micro(c, micro)
    if not c.recompute:
        steps.append(("recomputation", replace(c, recompute=True)))
        if micro < c.micro:
            steps.append((f"recomputation and {key} {micro}", replace(least, recompute=True)))
    tops = range(c.zero + 1, (3 if c.pp == 1 else 1) + 1) if settings.framework == "deepspeed" else range(c.zero + 1, 2)
    name = "zero_optimization.stage" if settings.framework == "deepspeed" else "--use-distributed-optimizer: ZeRO"
    for zero in tops if c.dp > 1 else ():
        steps.append((f"{name} {zero}", replace(c, zero=zero)))
    if c.dp > 1 and len(tops):
        most = replace(least, zero=max(tops), recompute=True)
        steps.append((f"{name} {max(tops)}, recomputation and {key} {micro}", most))
    for words, changed in steps:
        bounds = _bounds(settings, numbers, changed)
        pairs = zip(_memory(settings, numbers, changed, bounds), _limits(numbers, changed), strict=True)
        total, limit = max(((m.total, limit) for m, limit in pairs), key=lambda pair: pair[0] - pair[1])
        yield words, total, total <= limit


def _limits(numbers: Numbers, candidate: Candidate) -> tuple[int, ...]:
    """What each device of every stage has."""
    limit_of = numbers.problem.memory_limit_of
    return tuple(limit_of(stage_devices(numbers, candidate, stage)) for stage in range(candidate.pp))


def stage_devices(numbers: Numbers, candidate: Candidate, stage: int) -> tuple[int, ...]:
    """The devices of one stage."""
    each = candidate.dp * candidate.tp
    return numbers.placement(candidate).devices[stage * each : (stage + 1) * each]


def _micro(candidate: Candidate, micro: int) -> Candidate:
    return replace(candidate, micro=micro, micro_batches=candidate.micro * candidate.micro_batches // micro)


def _bounds(settings: Settings, numbers: Numbers, candidate: Candidate) -> tuple[int, ...]:
    """The file's own layers a stage, where it says; otherwise the fastest cuts that fit, or the smallest where none.

    Where stages have unlike devices, what fits each of them is looked for among the fastest cuts that fit the smallest
    of all, or the largest, and the smallest cuts.
    """
    blocks = len(numbers.groups.kinds)
    if candidate.pp == 1:
        return (0, blocks)
    if candidate.pp > blocks:
        raise Unpriced(f"{candidate.pp} stages need as many blocks, and the model has {blocks}")
    run = layer_blocks(numbers.groups)
    if settings.layers and run and sum(settings.layers) == len(run):
        bounds = [0]
        first = run.start
        for layers in settings.layers[:-1]:
            first += layers
            bounds.append(first)
        return (*bounds, blocks)
    limits = _limits(numbers, candidate)
    found = [best_cuts(numbers.table(candidate, float(limit))) for limit in sorted(set(limits))]
    least = least_memory(numbers.table(candidate, inf))
    assert least is not None, "there are enough blocks"
    for tried in (*(cutting.bounds for cutting in found if cutting is not None), least[1]):
        memory = _memory(settings, numbers, candidate, tried)
        if all(stage.total <= limit for stage, limit in zip(memory, limits, strict=True)):
            return tried
    return least[1]


def _memory(
    settings: Settings, numbers: Numbers, candidate: Candidate, bounds: tuple[int, ...]
) -> tuple[MemoryBytes, ...]:
    found = [stage_memory(numbers, candidate, stage, i, j) for stage, (i, j) in enumerate(pairwise(bounds))]
    # Offloaded states lie in the host's memory.
    away = {"optimizer": 0} if "optimizer" in settings.offload and candidate.zero >= 1 else {}
    away |= {"parameters": 0} if "param" in settings.offload and candidate.zero == 3 else {}
    return tuple(replace(memory, **away) for memory in found)
