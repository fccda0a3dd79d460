"""What the colours stand for: only those that the page has."""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from partita.cli.show import block_range
from partita.plan import Plan
from partita.plugins.report.marks import PHASES, SHADES, shades
from partita.plugins.report.svg import element
from partita.simulate import Simulation

# Marks that are no turns, by the first of their classes.
OTHERS = {
    "reduce": "gradients averaged over copies (a collective)",
    "update": "update",
    "several": "different tasks, too short to be told apart",
    "send": "sending (upper thin bar)",
    "receive": "receiving (lower thin bar)",
}


def of_timeline(plan: Plan, looks: Collection[str]) -> str:
    """Phases by shade, where devices serve several stages; what else occurs; collectives inside turns; waiting."""
    used = [look.split() for look in looks]
    shade = shades(plan)
    items = []
    for phase in PHASES:
        for index in range(SHADES):
            if not any(look[:2] == [phase, f"s{index}"] for look in used):
                continue
            names = [stage.name for stage, own in zip(plan.stages, shade, strict=True) if own == index]
            of = f" of {block_range(names)}" if len(set(shade)) > 1 else ""
            items.append(_item(f"{phase} s{index}", f"{phase}{of}"))
    kinds = {look[0] for look in used} - set(PHASES)
    # A kind of task that has no colour of its own is shown by its name, in that of the update.
    known = [kind for kind in OTHERS if kind in kinds]
    items += [_item(kind, OTHERS.get(kind, kind)) for kind in [*known, *sorted(kinds - OTHERS.keys())]]
    if any(part.startswith("foot-") for look in used for part in look):
        items.append(_item("collective", "at the foot of a task: the part of its time that is collectives"))
    items.append(_item("waiting", "waiting"))
    return element("ul", *items, class_="legend")


def of_memory(simulation: Simulation) -> str:
    """The items of memory that some device holds."""
    held = [peak.items() for peak in simulation.peaks.values()]
    items = [_item(name, name) for name in held[0] if any(peak[name] for peak in held)]
    line = element("path", class_="limit", d="M0 6H16")
    swatch = element("svg", line, width=16, height=12, aria_hidden="true")
    limit = element("li", swatch, "the memory that a device has")
    return element("ul", *items, limit, class_="legend")


def _item(look: str, words: str) -> str:
    swatch = element("rect", class_=look, width=16, height=12)
    return element("li", element("svg", swatch, width=16, height=12, aria_hidden="true"), escape(words))
