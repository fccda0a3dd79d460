"""The page as a whole: its head, the pictures with their legends, the tables, and what the pictures leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import partita
from partita.cli.show import duration, ranges
from partita.cluster import Cluster
from partita.plan import Plan
from partita.planner.words import gib
from partita.plugins.report import legend, tables
from partita.plugins.report.lanes import EACH, Lane, alone, groups
from partita.plugins.report.marks import PHASES
from partita.plugins.report.memory import memory
from partita.plugins.report.scale import scale
from partita.plugins.report.stage_graph import drawing
from partita.plugins.report.style import STYLE
from partita.plugins.report.svg import element
from partita.plugins.report.timeline import Timeline, timeline
from partita.simulate import Simulation
from partita.simulate.predict import as_simulated
from partita.simulate.stage_graph import Forms, StageGraph, sentence


def page(simulation: Simulation, plan: Plan, cluster: Cluster, stages: StageGraph, forms: Forms | None) -> str:
    """The HTML text; the same for the same simulation. ``stages`` and ``forms`` as of ``simulate.stage_graph``."""
    turns = (seconds for (_, kind), seconds in sorted(simulation.costs.seconds.items()) if kind in PHASES)
    wide = scale(simulation.step_seconds, turns)
    alike = groups(simulation, wide.seconds / wide.pixels)
    shown = alone(simulation) if len(simulation.timings) <= EACH else alike
    times = timeline(simulation, plan, shown, wide)
    limits = {device: cluster.device_at(device).memory_bytes for device in simulation.peaks}
    held = memory(simulation, plan, limits, alike, wide)
    title = f"{plan.model} on {cluster.name}"
    pictures = [
        _before("What the devices do", legend.of_timeline(plan, times.looks), _shown(shown, times)),
        element("div", times.names, times.lanes, class_="row"),
        _before("What they hold", legend.of_memory(simulation), _held(alike, held.limits_above)),
        element("div", held.names, held.charts, class_="row"),
    ]
    own = as_simulated(simulation, plan)
    graph = [_before("Who reads whom", "", _read(stages, plan, forms)), drawing(stages, own, forms)]
    body = [
        element("h1", escape(title)), _asked(plan), _facts(simulation, plan, limits), *_alarm(simulation, limits),
        element("div", *graph, class_="chart", tabindex="0", role="region", aria_label="Graph of stages"),
        element("div", *pictures, class_="chart", tabindex="0", role="region", aria_label="Timeline and memory"),
        element("h2", "In figures"),
        element("div", tables.stages(simulation, plan), class_="tables"),
        *([] if stages.is_chain else [element("div", tables.edges(stages, own, forms), class_="tables")]),
        element("div", tables.devices(simulation, plan, alike), class_="tables"),
        element("div", tables.memory(simulation, plan, alike), class_="tables"),
        *([element("h2", "Why this plan"), _reasons(plan)] if plan.reasons else []),
        element("footer", f"Made by partita {escape(partita.__version__)}, simulate --report."),
    ]  # fmt: skip
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", escape(title)), element("style", STYLE),
    ]  # fmt: skip
    return f"<!DOCTYPE html>\n{element('html', element('head', *head), element('body', *body), lang='en')}\n"


def _asked(plan: Plan) -> str:
    """The question, and the schedule that answers it."""
    tokens = f" of {plan.seq} tokens" if plan.seq else ""
    counts = sorted({stage.micro_batches for stage in plan.stages})
    words = (
        f"{plan.global_batch} samples{tokens} a step, {plan.precision}, {plan.optimizer}, for {plan.target}; schedule "
        f"{plan.schedule}, {' or '.join(map(str, counts))} micro-batches"
    )
    return element("p", escape(words), class_="quiet")


def _facts(simulation: Simulation, plan: Plan, limits: Mapping[int, int]) -> str:
    """The figures that are looked for first."""
    step, predicted = simulation.step_seconds, plan.predicted
    device = max(simulation.peaks, key=lambda device: simulation.peaks[device].total - limits[device])
    peak = simulation.peaks[device].total
    facts = [
        ("simulated step", duration(step), f"predicted {duration(predicted.step_seconds)}"),
        ("samples a second", f"{plan.global_batch / step:.4g}" if step else "–", ""),
        ("bubble", f"{simulation.bubble_fraction:.1%}", f"predicted {predicted.bubble_fraction:.1%}"),
        ("peak memory", gib(peak), f"of {gib(limits[device])}, device {device}"),
        ("devices", str(len(simulation.timings)), f"in {len(plan.stages)} stage{'s' * (len(plan.stages) > 1)}"),
    ]
    return element("dl", *(
        element("div", element("dt", what), element("dd", escape(value), " ", element("small", escape(beside))))
        for what, value, beside in facts
    ), class_="facts")  # fmt: skip


def _alarm(simulation: Simulation, limits: Mapping[int, int]) -> list[str]:
    over = [device for device, peak in simulation.peaks.items() if peak.total > limits[device]]
    sizes = " or ".join(dict.fromkeys(gib(limits[device]) for device in over))
    words = f"It does not fit: devices {ranges(over)} need more than the {sizes} that they have."
    return [element("p", words, class_="alarm", role="alert")] if over else []


def _read(stages: StageGraph, plan: Plan, forms: Forms | None) -> list[str]:
    """What the graph of stages comes to, if the plan's reasons don't say it, and what is drawn where."""
    note = (
        "A number at an edge is the size of what one micro-batch's values take. Rest the pointer on anything for more."
    )
    if stages.is_chain:
        return [note]
    words = sentence(stages, forms)
    drawn = "Stages of a column have equally long paths behind them; the longest path is drawn in a stronger line."
    return [*([] if words in plan.reasons else [words]), f"{drawn} {note}"]


def _shown(shown: Sequence[Lane], times: Timeline) -> list[str]:
    """What the timeline leaves out."""
    found = []
    count = sum(len(lane.devices) for lane in shown)
    if count > EACH:
        found.append(f"The {count} devices are drawn in {len(shown)} lanes: {_grouped(shown)}.")
    if times.rectangles < times.tasks:
        found.append(
            f"Tasks shorter than {duration(times.least_seconds)} that follow each other are drawn together: "
            f"{times.tasks:,} tasks in {times.rectangles:,} rectangles."
        )
    found.append(
        "Numbers are micro-batches, where they have room. Rest the pointer on anything"
        + (" but a message" if times.plain else "")
        + " for its seconds."
    )
    return found


def _held(alike: Sequence[Lane], above: Sequence[float]) -> list[str]:
    """What stands for what in the pictures of memory."""
    found = []
    if any(len(lane.devices) > 1 for lane in alike):
        found.append(f"Devices that hold the same are drawn once: {_grouped(alike)}.")
    if above:
        sizes = " or ".join(map(gib, above))
        found.append(f"The line of the limit, {sizes}, is drawn at the top; it lies above this scale.")
    return found


def _grouped(found: Sequence[Lane]) -> str:
    off = max(lane.off_seconds for lane in found)
    words = "those of a group run the same tasks in the same order and hold the same at their peak"
    return f"{words}, their times differ by {duration(off)} at most" if off else f"{words}, at the same times"


def _before(heading: str, key: str, notes: Sequence[str]) -> str:
    """What stands above a picture, and stays when the picture is moved sideways."""
    return element("div", element("h2", heading), key, *(element("p", escape(note)) for note in notes), class_="before")


def _reasons(plan: Plan) -> str:
    return element("ul", *(element("li", escape(reason)) for reason in plan.reasons))
