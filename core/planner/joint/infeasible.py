"""Where nothing fits: the least memory that would do, what binds, how many devices, which batch. All exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm

from partita.cost.state import state_bytes
from partita.errors import Infeasible, PlanError, divisors
from partita.plan import Order
from partita.planner.arrangement import arrangement
from partita.planner.fix import held_devices, says_all_devices, unkept
from partita.planner.joint.build import plan_stages, stage_memory
from partita.planner.joint.kinds import BlockCut
from partita.planner.joint.price import Pricing, Schedule
from partita.planner.joint.smallest import Smallest, floor, smallest
from partita.planner.joint.space import MOST_UNITS, Family
from partita.planner.joint.table import JointTable
from partita.planner.words import counted, gib
from partita.problem import Problem

# Larger numbers of devices that are tried.
STEPS = 256

WORDS = {
    "parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer states",
    "activations": "activations of the micro-batches in flight", "temporary": "temporary tensors of the backward pass",
    "framework": "the framework's own memory",
}  # fmt: skip


@dataclass(frozen=True)
class Least:
    """The answer that needs the least memory a device, of some tables: on the largest device; smaller ones lack as much
    as they would then."""

    pricing: Pricing
    family: Family
    table: JointTable
    smallest: Smallest

    @property
    def words(self) -> str:
        """The answer in one line."""
        stages = plan_stages(self.pricing, self.family, self.table, self.smallest.stages)
        return arrangement(stages, Order(self.table.schedule, len(stages), self.table.micro_batches))


def refuse(pricing: Pricing, counts: Sequence[int]) -> Infeasible | PlanError:
    """The error to raise where no answer to the pricing's problem on any of these numbers of devices fits the limit; a
    PlanError where there is none whatever the limit, because what is held contradicts itself."""
    problem = pricing.problem
    found = least_memory(pricing, counts)
    if found is None:
        return unkept(problem)
    behind = range(len(found.smallest.stages) - 1, -1, -1)
    memories = [
        stage_memory(found.pricing, found.family, found.table, stage, left)
        for stage, left in zip(found.smallest.stages, behind, strict=True)
    ]
    stages = plan_stages(found.pricing, found.family, found.table, found.smallest.stages)
    limits = [problem.memory_limit_of(stage.devices) for stage in stages]
    stage = max(range(len(memories)), key=lambda s: memories[s].total - limits[s])
    chosen = found.smallest.stages[stage]
    blocks = problem.graph.blocks[chosen.start : chosen.stop]
    largest = max(memories[stage].items().items(), key=lambda item: item[1])
    span = f'"{blocks[0].name}"' if len(blocks) == 1 else f'"{blocks[0].name}" to "{blocks[-1].name}"'
    needed, limit = found.smallest.bytes, problem.largest_memory_limit
    on = f"on {counted(problem.cluster.devices)} ({problem.cluster.device_names})"
    if limit == problem.memory_limit:
        smallest = f"nothing fits {gib(limit)} a device {on}: the least is {gib(needed)} a device ({needed:,} bytes)"
        enough, most = f"With {gib(needed)} a device", needed
    else:
        smallest = (
            f"nothing fits {gib(problem.memory_limit)} to {gib(limit)} a device {on}: each would need at least "
            f"{gib(needed - limit)} more ({needed - limit:,} bytes)"
        )
        enough, most = f"With {gib(needed - limit)} more on each device", memories[stage].total
    reasons = [
        f"{enough} a plan exists: {found.words}.",
        f"Stage {stage} binds (blocks {span}), and in it {WORDS[largest[0]]}: {gib(largest[1])} of {gib(most)}.",
        _state_sentence(pricing),
        _devices_sentence(pricing),
        _batch_sentence(pricing, counts),
    ]
    return Infeasible(f"{smallest}. " + " ".join(reasons), reasons)


def least_memory(pricing: Pricing, counts: Sequence[int], under: float = float("inf")) -> Least | None:
    """The answer of all tables of a problem on these numbers of devices, the largest first, that needs the least memory
    a device; None where none needs less than ``under`` bytes."""
    best: Least | None = None
    for devices in counts:
        if least_share(pricing, devices) >= under:
            break
        here = pricing.on(pricing.problem, devices)
        for bound, family, table in sorted(_tables(here), key=lambda each: each[0]):
            if bound >= under:
                break
            found = smallest(table, under)
            if found is not None:
                best, under = Least(here, family, table, found), float(found.bytes)
    return best


def fitting(pricing: Pricing, limit: float) -> Least | None:
    """Any answer that fits the limit on all of a pricing's devices."""
    return _first(pricing, ((family, table) for bound, family, table in _tables(pricing) if bound <= limit), limit)


def _first(pricing: Pricing, tables: Iterable[tuple[Family, JointTable]], limit: float) -> Least | None:
    """The answer that needs the least memory of the first table that has one within the limit."""
    for family, table in tables:
        if (found := smallest(table, limit + 1)) is not None and found.bytes <= limit:
            return Least(pricing, family, table, found)
    return None


def _schedule(problem: Problem) -> Schedule:
    """The one under which an answer holds the least, of those that may be chosen."""
    return "gpipe" if problem.fix.get("schedule") == "gpipe" else "1f1b"


def _tables(pricing: Pricing) -> Iterator[tuple[float, Family, JointTable]]:
    """The tables among which the least memory is, each with a bound of it.

    1F1B without a deeper warm-up holds the least; of the numbers of micro-batches that fill the pipeline for the same
    shapes, the largest does.
    """
    schedule = _schedule(pricing.problem)
    for family in pricing.families:
        seen = set()
        for count in reversed(pricing.micro_batches(family)):
            table = pricing.table(family, count, schedule)
            shapes = ((table.prices_of >= 0).any(axis=1)).tobytes()
            if schedule == "1f1b" and count >= table.most_stages:
                if shapes in seen:
                    continue
                seen.add(shapes)
            yield floor(table), family, table


def state(pricing: Pricing) -> float:
    """Bytes of the whole model's state, on one device."""
    costs = [pricing.kinds.costs(BlockCut(1))[kind] for kind in pricing.kinds.of]
    trained, frozen = float(sum(cost.trained for cost in costs)), float(sum(cost.frozen for cost in costs))
    per = state_bytes(pricing.problem.precision, pricing.problem.optimizer, 0, 1)
    return trained * per.total + frozen * per.parameters


def framework_bytes(pricing: Pricing) -> int:
    """The least that is taken on any device before any tensor exists."""
    return min(device.framework_bytes for device in pricing.cluster.different_devices())


def least_share(pricing: Pricing, devices: int) -> float:
    """Bytes that some device of so many holds, however the model's state is divided."""
    return framework_bytes(pricing) + state(pricing) / devices * (1 - 1e-9)


def _state_sentence(pricing: Pricing) -> str:
    problem, size = pricing.problem, state(pricing)
    each = problem.memory_limit - problem.cluster.weakest().framework_bytes
    text = (
        f"The model's state is {gib(size)}; a perfect split over {counted(problem.cluster.devices)} would be "
        f"{gib(size / problem.cluster.devices)} each"
    )
    if each > 0 and size / problem.cluster.devices > each:
        text += f", and {counted(ceil(size / each))} would hold it if it could be split evenly"
    return text + "."


def _devices_sentence(pricing: Pricing) -> str:
    framework, last = framework_bytes(pricing), pricing.cluster.kinds[-1].device
    if pricing.problem.largest_memory_limit <= framework:
        return f"No number of such devices would do: the framework alone takes {gib(framework)}."
    found = more_devices(pricing)
    if found is not None:
        kind = "of this kind" if pricing.cluster.device_names == last.name else f"(the further ones {last.name})"
        return f"{counted(found.pricing.devices)} {kind} would do, and no fewer: {found.words}."
    return "No number of such devices that was tried would do with what is held."


def more_devices(pricing: Pricing) -> Least | None:
    """The least larger number of such devices on which an answer fits, of ``STEPS`` numbers."""
    problem = pricing.problem
    step, cluster = held_devices(problem.fix), problem.cluster
    if says_all_devices(problem.fix):
        return None
    room = problem.largest_memory_limit - framework_bytes(pricing)
    first = max(cluster.devices + 1, ceil(state(pricing) / room))
    first = ceil(first / step) * step
    for devices in range(first, first + STEPS * step, step):
        larger = replace(problem, cluster=cluster.resized(devices))
        found = fitting(pricing.on(larger, devices), float(larger.largest_memory_limit))
        if found is not None:
            return found
    return None


def _batch_sentence(pricing: Pricing, counts: Sequence[int]) -> str:
    found = smaller_batch(pricing, counts)
    if found is None:
        return "No smaller global batch would do."
    return f"A global batch of {found.pricing.problem.global_batch} would do, and no larger one: {found.words}."


def smaller_batch(pricing: Pricing, counts: Sequence[int]) -> Least | None:
    """The largest global batch under the one asked for with which an answer fits on these numbers of devices.

    A turn takes s samples, the least that the stages' copies can divide: more hold more. Of the micro-batches of that
    size the most that fit are found by halving, as more of them in flight hold no less. Where their number is held, it
    is their size that grows.
    """
    problem = pricing.problem
    held, limit = problem.fix.get("micro_batches"), float(problem.largest_memory_limit)
    best: Least | None = None
    for devices in counts:
        if least_share(pricing, devices) > limit:
            break
        for samples in _turns(problem, devices):
            most = 0 if best is None else best.pricing.problem.global_batch
            step = samples * int(held or 1)
            top = (problem.global_batch - 1) // step
            # All up to ``low`` are no better than what is known; none from ``high`` on fits, and most often none does.
            low, high = most // step, top + 1
            first = [top, low + 1]
            while low + 1 < high:
                times = first.pop() if first else (low + high) // 2
                batch = replace(problem, global_batch=step * times)
                found = _with_turns(pricing.on(batch, devices), int(held or times), limit)
                low, high, best = (low, times, best) if found is None else (times, high, found)
    return best


def _with_turns(pricing: Pricing, count: int, limit: float) -> Least | None:
    schedule = _schedule(pricing.problem)
    tables = (
        (family, pricing.table(family, count, schedule))
        for family in pricing.families if count in pricing.micro_batches(family)
    )  # fmt: skip
    return _first(pricing, ((family, table) for family, table in tables if floor(table) <= limit), limit)


def _turns(problem: Problem, devices: int) -> list[int]:
    """The samples of a turn that any choice of copies may need: what their numbers divide, each once."""
    each = int(problem.fix.get("micro_batch", 1))
    found = set(divisors(devices))
    if problem.target == "partita":
        unit = next(unit for unit in divisors(devices) if devices // unit <= MOST_UNITS)
        for width in range(unit, devices, unit):
            found |= {lcm(one, other) for one in divisors(width) for other in found}
    return sorted(samples * each for samples in found if samples * each < problem.global_batch)
