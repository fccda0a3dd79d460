"""The user's own arrangement through the cost model: memory of every stage, time of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from partita.cost.alike import require_tp
from partita.errors import PlanError
from partita.plan import MemoryBytes, Plan, Recompute
from partita.planner.joint.price import Pricing
from partita.planner.joint.table import Chosen
from partita.planner.joint.uniform import Uniform, Way, cut
from partita.plugins.check.model import layer_blocks
from partita.plugins.check.settings import Settings
from partita.simulated import foretold


@dataclass(frozen=True)
class Priced:
    """The arrangement and its plan; ``memory`` of each stage, without what is offloaded, and ``limits``, the bytes that
    each of its devices has. ``step_seconds`` is None where the batch doesn't close or states are offloaded.
    ``assumed``: what the file doesn't say and was decided here."""

    uniform: Uniform
    plan: Plan
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


def uniform_of(settings: Settings) -> Uniform:
    """The arrangement as the planner names it; Unpriced where something is missing or isn't in the model."""
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
    again: Recompute = "full" if settings.recompute else "none"
    return Uniform(settings.pp, settings.tp, dp, settings.zero, again, batch.micro, batch.accumulation)


def price(settings: Settings, pricing: Pricing) -> Priced:
    """Memory and time; Unpriced with the reason where the cost model can't say."""
    uniform = uniform_of(settings)
    try:
        require_tp(pricing.problem.graph, pricing.groups, settings.tp)
    except PlanError:
        raise Unpriced(f"tp {settings.tp} doesn't cut this model") from None
    assumed = []
    if settings.recompute is None:
        assumed.append("no recomputation: the file doesn't say")
    way = Way(pricing, uniform)
    plan = way.plan(_stages(settings, way))
    if uniform.pp > 1 and settings.layers is None:
        assumed.append("stages cut as well as can be: the file doesn't say where")
    timed = uniform.batch == settings.samples and not settings.offload
    if timed:
        # As the planner's own plan, with which it is compared.
        plan = foretold(pricing.problem.graph, plan, pricing.cluster)
    seconds = plan.predicted.step_seconds if timed else None
    return Priced(uniform, plan, _memory(settings, plan), _limits(pricing, plan), seconds, tuple(assumed))


def smaller(settings: Settings, pricing: Pricing, priced: Priced) -> Iterator[tuple[str, int, bool]]:
    """Changes that take less memory, with the bytes that the device with the least left then holds, and whether they
    fit: smaller micro-batches, recomputation, both, a higher ZeRO stage, all three."""
    c = priced.uniform
    key = settings.keys["micro"]
    steps: list[tuple[str, Uniform]] = []
    micro = c.micro
    while micro % 2 == 0:
        micro //= 2
        steps.append((f"{key} {micro}, {c.micro // micro * c.micro_batches} micro-batches", _micro(c, micro)))
    least = _micro(c, micro)
    if c.recompute == "none":
        steps.append(("recomputation", replace(c, recompute="full")))
        if micro < c.micro:
            steps.append((f"recomputation and {key} {micro}", replace(least, recompute="full")))
    tops = range(c.zero + 1, (3 if c.pp == 1 else 1) + 1) if settings.framework == "deepspeed" else range(c.zero + 1, 2)
    name = "zero_optimization.stage" if settings.framework == "deepspeed" else "--use-distributed-optimizer: ZeRO"
    for zero in tops if c.dp > 1 else ():
        steps.append((f"{name} {zero}", replace(c, zero=zero)))
    if c.dp > 1 and len(tops):
        most = replace(least, zero=max(tops), recompute="full")
        steps.append((f"{name} {max(tops)}, recomputation and {key} {micro}", most))
    for words, changed in steps:
        way = Way(pricing, changed)
        plan = way.plan(_stages(settings, way))
        pairs = zip(_memory(settings, plan), _limits(pricing, plan), strict=True)
        total, limit = max(((m.total, limit) for m, limit in pairs), key=lambda pair: pair[0] - pair[1])
        yield words, total, total <= limit


def _limits(pricing: Pricing, plan: Plan) -> tuple[int, ...]:
    """What each device of every stage has."""
    return tuple(pricing.problem.memory_limit_of(stage.devices) for stage in plan.stages)


def _micro(uniform: Uniform, micro: int) -> Uniform:
    return replace(uniform, micro=micro, micro_batches=uniform.micro * uniform.micro_batches // micro)


def _stages(settings: Settings, way: Way) -> tuple[Chosen, ...]:
    """The file's own layers a stage, where it says; otherwise the fastest cuts that fit, or the smallest where none."""
    blocks, pp = way.table.blocks, way.uniform.pp
    if pp == 1:
        return cut((0, blocks))
    if pp > blocks:
        raise Unpriced(f"{pp} stages need as many blocks, and the model has {blocks}")
    run = layer_blocks(way.pricing.groups)
    if settings.layers and run and sum(settings.layers) == len(run):
        bounds = [0]
        first = run.start
        for layers in settings.layers[:-1]:
            first += layers
            bounds.append(first)
        return cut((*bounds, blocks))
    return way.fastest() or way.smallest()


def _memory(settings: Settings, plan: Plan) -> tuple[MemoryBytes, ...]:
    found, zero = [stage.memory for stage in plan.predicted.breakdown.stages], plan.stages[0].strategies[0].zero
    # Offloaded states lie in the host's memory.
    away = {"optimizer": 0} if "optimizer" in settings.offload and zero >= 1 else {}
    away |= {"parameters": 0} if "param" in settings.offload and zero == 3 else {}
    return tuple(replace(memory, **away) for memory in found)
