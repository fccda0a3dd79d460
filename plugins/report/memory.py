"""A device's memory over the step: items stacked, the limit as a line, the peak marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from partita.cli.show import duration
from partita.plan import Plan
from partita.planner.words import gib
from partita.plugins.report.lanes import Lane
from partita.plugins.report.scale import Scale
from partita.plugins.report.svg import cut, element, number, text, title
from partita.plugins.report.timeline import AXIS, EDGE, NAMES, axis, name
from partita.simulate import Simulation

# What changes over a step; the other items are there all the time.
CHANGING = ("activations", "temporary", "buffers")
# Of the limit: where the highest peak is lower, the limit lies above the picture.
LOW = 0.5


@dataclass(frozen=True)
class Memory:
    """Two pictures of one height, names and charts. ``limits_above``: limits that lie above the scale."""

    names: str
    charts: str
    limits_above: tuple[float, ...]


def memory(
    simulation: Simulation, plan: Plan, limits: Mapping[int, int], lanes: Sequence[Lane], scale: Scale
) -> Memory:
    """All charts, on one scale of bytes; ``limits`` by device, of which a lane's smallest counts."""
    least = [min(limits[device] for device in lane.devices) for lane in lanes]
    highest = max((simulation.peaks[lane.first].total for lane in lanes), default=0)
    above = tuple(limit for limit in dict.fromkeys(least) if highest < LOW * limit)
    # Above the highest there is room for the peak's words.
    most = 1.25 * max([highest, *(limit for limit in least if limit not in above)]) or 1.0
    each = min(120, max(52, 1000 // max(1, len(lanes))))
    height = len(lanes) * (each + 10) + AXIS
    names, charts = [], [axis(scale, height, (False, True))]
    for index, lane in enumerate(lanes):
        top = index * (each + 10)
        peak, limit = simulation.peaks[lane.first].total, least[index]
        inside = limit not in above
        names += [*_names(plan, lane, limit, inside, most, top, each), text(0, top + 42, f"peak {gib(peak)}", "quiet")]
        charts.append(_chart(simulation, lane, limit, inside, most, scale, top, each))
    return Memory(
        element("svg", *names, width=NAMES, height=height, class_="names", aria_hidden="true"),
        element(
            "svg", *charts, width=scale.pixels + 2 * EDGE, height=height, role="img",
            viewBox=f"{-EDGE} 0 {scale.pixels + 2 * EDGE} {height}",
            aria_label="Memory of each device over the step. The table of memory has its peaks.",
        ),
        above,
    )  # fmt: skip


def _names(plan: Plan, lane: Lane, limit: float, inside: bool, most: float, top: int, each: int) -> list[str]:
    devices, stages = name(plan, lane)
    line = top + each * (1 - limit / most) if inside else top + 2
    return [
        text(0, top + 12, cut(devices, 17), "name", devices),
        text(0, top + 27, cut(stages, 17), "quiet", stages),
        text(NAMES - 8, max(line + 4, top + 9), gib(limit) if inside else f"{gib(limit)} ↑", "end axis limit"),
        text(NAMES - 8, top + each, "0", "end axis"),
    ]


def _chart(
    simulation: Simulation, lane: Lane, limit: float, inside: bool, most: float, scale: Scale, top: int, each: int
) -> str:
    peak = simulation.peaks[lane.first]
    items = peak.items()

    def y(size: float) -> float:
        return top + each * (1 - size / most)

    base, areas = 0, []
    for item, size in items.items():
        if item not in CHANGING and size:
            hint, top_of, height = title(f"{item}: {gib(size)} all the time"), y(base + size), y(base) - y(base + size)
            areas.append(element("rect", hint, class_=item, x=0, y=top_of, width=scale.pixels, height=height))
            base += size
    levels = _levels(simulation, lane.first, scale)
    # The highest first: what lies below is painted over it.
    for index, item in reversed(list(enumerate(CHANGING))):
        if any(sums[index + 1] > sums[index] for _, sums in levels):
            outline = _area([(x, y(base + sums[index + 1])) for x, sums in levels], y(base), scale.pixels)
            areas.append(element("path", title(f"{item}: {gib(items[item])} at the peak"), class_=item, d=outline))
    line = y(limit) if inside else top + 0.5
    areas.append(element("path", title(f"limit: {gib(limit)}"), class_="limit", d=f"M0 {number(line)}H{scale.pixels}"))
    x = scale.x(peak.seconds)
    words = f"peak {gib(peak.total)} at {duration(peak.seconds)}" + (" · over the limit" if peak.total > limit else "")
    # Six pixels a letter; the words stand to the left of a peak that is too far right for them.
    side, shift = ("end", -5) if x + 6.2 * len(words) > scale.pixels else ("start", 5)
    areas += [
        element("circle", title(words), class_="peak", cx=x, cy=y(peak.total), r=3),
        text(x + shift, y(peak.total) - 4, words, f"{side} peak" + (" over" if peak.total > limit else "")),
    ]
    return element("g", *areas, data_device=str(lane.first))


def _levels(simulation: Simulation, device: int, scale: Scale) -> list[tuple[int, list[int]]]:
    """Steps: from a pixel on, 0 and the sums of one, two and three of the items; in a pixel the most of each."""
    now = [0] * (1 + len(CHANGING))
    columns = [(0, now)]
    for moment in simulation.memory(device):
        x, last = int(scale.x(moment.seconds)), columns[-1][0]
        if x > last:
            # What was there when the last pixel ended goes on in the next one.
            if columns[-1][1] != now and x > last + 1:
                columns.append((last + 1, now))
            columns.append((x, now))
        now = list(accumulate((getattr(moment, item) for item in CHANGING), initial=0))
        columns[-1] = (x, [max(pair) for pair in zip(columns[-1][1], now, strict=True)])
    if columns[-1][1] != now:
        columns.append((columns[-1][0] + 1, now))
    return columns


def _area(steps: Sequence[tuple[int, float]], ground: float, end: int) -> str:
    """The outline of steps down to the ground; steps that can't be seen are left out."""
    drawn, height = [f"M0 {number(ground)}"], number(ground)
    for x, y in steps:
        if (next_height := f"{y:.1f}") != height:
            drawn.append(f"H{min(x, end)}V{next_height}")
            height = next_height
    return "".join(drawn) + f"H{end}V{number(ground)}Z"
