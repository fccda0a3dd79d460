"""The timeline: a lane for each device, its turns in a bar, its messages in two thin ones below, waiting as gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from partita.cli.show import ranges
from partita.plan import Plan
from partita.plugins.report.lanes import Lane
from partita.plugins.report.marks import Mark, foot, messages, own, shades, share, together
from partita.plugins.report.scale import Scale
from partita.plugins.report.svg import cut, element, number, text, title
from partita.simulate import Simulation

# Pixels: the column of names, the axis above and below, a digit of a micro-batch's number, a message's bar.
NAMES, AXIS, DIGIT, THIN = 190, 22, 5.4, 3
# What is shorter than that is drawn so wide, so that it is seen.
SEEN = 1.0
# Rectangles with hints that a page has at most: a browser shows them without delay, and they fill two or three MB.
# Where there would be more, messages lose their hints; where there still are, wider ones are drawn together.
RECTANGLES = 14_000


@dataclass(frozen=True)
class Timeline:
    """Two pictures of one height, names and lanes; ``tasks`` stand in ``rectangles``.

    Tasks shorter than ``least_seconds`` are drawn together. ``plain``: messages have no hints. ``looks`` are all looks
    of marks that occur.
    """

    names: str
    lanes: str
    tasks: int
    rectangles: int
    least_seconds: float
    plain: bool
    looks: frozenset[str]


@dataclass(frozen=True)
class Rows:
    """Where things stand in a lane, in pixels from its top."""

    pitch: int
    bar: int

    @property
    def sends(self) -> int:
        return self.bar + 3

    @property
    def receives(self) -> int:
        return self.sends + THIN + 1


def timeline(simulation: Simulation, plan: Plan, lanes: Sequence[Lane], scale: Scale) -> Timeline:
    """Draw it."""
    rows = Rows(30, 18) if len(lanes) <= 16 else Rows(24, 13)
    height = 2 * AXIS + rows.pitch * len(lanes)
    shade = shades(plan)
    drawn = [
        (own(simulation, plan, lane.first, shade), *(messages(simulation, lane.first, k) for k in ("send", "receive")))
        for lane in lanes
    ]
    least = scale.seconds / scale.pixels
    merged = [[together(marks, least) for marks in lane] for lane in drawn]
    plain = sum(len(marks) for lane in merged for marks in lane) > RECTANGLES
    while sum(len(turns) for turns, *_ in merged) > RECTANGLES:
        least *= 2
        merged = [[together(marks, least) for marks in lane] for lane in drawn]
    parts = [_feet(simulation, shade), axis(scale, height)]
    for index, (lane, kinds) in enumerate(zip(lanes, merged, strict=True)):
        parts.append(_lane(simulation, lane, kinds, plain, scale, rows, AXIS + index * rows.pitch))
    wanted = [marks for lane in merged for marks in lane]
    return Timeline(
        element("svg", *_names(plan, lanes, rows), width=NAMES, height=height, class_="names", aria_hidden="true"),
        element(
            "svg", *parts, width=scale.pixels + 2 * EDGE, height=height, role="img",
            viewBox=f"{-EDGE} 0 {scale.pixels + 2 * EDGE} {height}", data_step_seconds=repr(scale.seconds),
            aria_label="Timeline of the step: what each device does and when. The table of devices has its sums.",
        ),
        sum(mark.count for marks in wanted for mark in marks), sum(map(len, wanted)), least, plain,
        frozenset(mark.look for marks in wanted for mark in marks),
    )  # fmt: skip


# Room at both sides for the first and last tick's words.
EDGE = 24


def axis(scale: Scale, height: int, words: tuple[bool, bool] = (True, True)) -> str:
    """Lines at the ticks and at the end of the step, with their times above and below."""
    parts = []
    top, bottom = (AXIS - 6 if words[0] else 0), (height - AXIS + 6 if words[1] else height)
    for seconds, label in scale.ticks():
        x = scale.x(seconds)
        parts.append(element("path", d=f"M{number(x)} {top}V{bottom}", class_="tick"))
        parts += [text(x, y, label, "middle axis") for y, shown in zip((12, height - 6), words, strict=True) if shown]
    end = element("path", title("the step ends"), d=f"M{scale.pixels} {top}V{bottom}", class_="end-of-step")
    return element("g", *parts, end)


def name(plan: Plan, lane: Lane) -> tuple[str, str]:
    """A lane's devices, and the stages that they serve."""
    devices = ranges(lane.devices)
    stages = [stage.name for stage in plan.stages if lane.first in stage.devices]
    return ("device " if len(lane.devices) == 1 else "devices ") + devices, ", ".join(stages)


def _names(plan: Plan, lanes: Sequence[Lane], rows: Rows) -> list[str]:
    parts = []
    for index, lane in enumerate(lanes):
        y = AXIS + index * rows.pitch + rows.bar - (rows.bar - 9) / 2
        devices, stages = name(plan, lane)
        # A letter is about six pixels wide, and both stand in one line.
        short = cut(devices, 17)
        parts.append(text(0, y, short, "name", devices))
        parts.append(text(NAMES - 8, y, cut(stages, 29 - len(short)), "end quiet", stages))
    return parts


def _lane(
    simulation: Simulation, lane: Lane, kinds: Sequence[list[Mark]], plain: bool, scale: Scale, rows: Rows, top: int
) -> str:
    use = simulation.use[lane.first]
    waits = use.waiting_seconds / simulation.step_seconds if simulation.step_seconds else 0.0
    ground = element(
        "rect", title(f"device {lane.first} waits {waits:.1%} of the step"),
        x=0, y=top, width=scale.pixels, height=rows.bar, class_="waiting",
    )  # fmt: skip
    turns, *rest = kinds
    parts = [ground, *(_mark(mark, scale, top, rows.bar) for mark in turns)]
    for marks, y in zip(rest, (top + rows.sends, top + rows.receives), strict=True):
        if plain and marks:
            parts.append(element("path", class_=marks[0].look, d="".join(_outline(mark, scale, y) for mark in marks)))
        else:
            parts += [_mark(mark, scale, y, THIN) for mark in marks]
    return element("g", *parts, data_device=str(lane.first))


def _mark(mark: Mark, scale: Scale, y: int, height: int) -> str:
    """One rectangle; this is most of the page, so it is written without detours."""
    x, width = scale.x(mark.start), scale.x(mark.end - mark.start)
    seen = number(max(width, SEEN))
    count = f' data-tasks="{mark.count}"' if mark.count > 1 else ""
    rectangle = (
        f'<rect class="{mark.look}" x="{number(x)}" y="{y}" width="{seen}" height="{height}"{count}>'
        f"<title>{escape(mark.hint)}</title></rect>"
    )
    if not mark.words or width < 0.5 + DIGIT * len(mark.words):
        return rectangle
    shade = mark.look.split()[1:2]
    look = f' class="{shade[0]}"' if shade else ""
    baseline = y + height / 2 + 3.2
    return f'{rectangle}<text x="{number(x + width / 2)}" y="{number(baseline)}"{look}>{escape(mark.words)}</text>'


def _outline(mark: Mark, scale: Scale, y: int) -> str:
    """The same rectangle as a part of a path."""
    width = number(max(scale.x(mark.end - mark.start), SEEN))
    return f"M{number(scale.x(mark.start))} {y}h{width}v{THIN}h-{width}z"


def _feet(simulation: Simulation, shade: Sequence[int]) -> str:
    """Fills whose foot is as high as the collectives' part of a task's seconds."""
    fills, rules = [], []
    for stage, kind in sorted(simulation.costs.seconds):
        inside = share(simulation, stage, kind)
        if not 0 < inside < 1:
            continue
        body = f"var(--{kind}{shade[stage]}, var(--{kind}))"
        stops = [
            f'<stop offset="{number(1 - inside)}" style="stop-color:{colour}"/>'
            for colour in (body, "var(--collective)")
        ]
        fills.append(element("linearGradient", *stops, id=foot(stage, kind), x1=0, y1=0, x2=0, y2=1))
        rules.append(f"rect.{kind}.{foot(stage, kind)}{{fill:url(#{foot(stage, kind)})}}")
    return element("defs", *fills, element("style", *rules)) if fills else ""
