"""Memory of the heaviest device against what it has, item by item."""

from __future__ import annotations

from collections.abc import Iterator

from partita.planner.joint.price import Pricing
from partita.planner.words import gib
from partita.plugins.check.finding import Finding, problem, warning
from partita.plugins.check.price import Priced, smaller
from partita.plugins.check.settings import Settings

# Above this share of the device's memory fragmentation and what no model counts may be too much.
CLOSE = 0.95
# So many changes are named.
SHOWN = 4


def memory_findings(settings: Settings, pricing: Pricing, priced: Priced) -> Iterator[Finding]:
    """A problem where the heaviest device holds more than it has, a warning where it is close."""
    stage = priced.heaviest
    memory, limit = priced.memory[stage], priced.limits[stage]
    place = settings.place("micro")
    devices = pricing.cluster.different_devices(priced.plan.stages[stage].devices)
    smallest = min(devices, key=lambda device: device.memory_bytes).name
    text = f"{span(priced)} {gib(memory.total)} a device, and {smallest} has {gib(limit)}: {items(priced)}"
    if memory.total > limit:
        tried = list(smaller(settings, pricing, priced))
        works = [f"{words}: {gib(size)}" for words, size, fits in tried if fits]
        least = min((size for _, size, _ in tried), default=memory.total)
        hint = "" if works else f". The least of what was tried is {gib(least)}: more devices, tp or pp are needed"
        yield problem(place, f"does not fit: {text}{hint}", *works[:SHOWN])
    elif memory.total > CLOSE * limit:
        yield warning(place, f"close to the limit: {text}")


def items(priced: Priced) -> str:
    """The items of the heaviest stage, largest first."""
    found = priced.memory[priced.heaviest].items()
    ordered = sorted(((size, name) for name, size in found.items() if size), reverse=True)
    return ", ".join(f"{name} {gib(size)}" for size, name in ordered)


def span(priced: Priced) -> str:
    """The heaviest stage and its blocks, for a sentence."""
    if priced.uniform.pp == 1:
        return "the model needs"
    stage = priced.heaviest
    blocks = priced.plan.stages[stage].blocks
    return f'stage {stage} ("{blocks[0]}" to "{blocks[-1]}") needs'
