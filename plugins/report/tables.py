"""The tables of the page: they say in figures what the pictures show, so that nobody depends on seeing them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from partita.cli.show import block_range, ranges, recompute, zero
from partita.cli.stage_graph import size
from partita.plan import Axis, Plan, Stage
from partita.plugins.report.lanes import Lane
from partita.plugins.report.marks import PHASES
from partita.plugins.report.svg import element
from partita.plugins.report.timeline import name
from partita.simulate import Simulation
from partita.simulate.stage_graph import Forms, StageGraph

GIB = 2**30


def stages(simulation: Simulation, plan: Plan) -> str:
    """A row for each stage: its blocks, devices and cuts, and the seconds of its turns."""
    seconds = simulation.costs.seconds
    phases = [phase for phase in PHASES if any((index, phase) in seconds for index in range(len(plan.stages)))]
    head = [
        "stage", "blocks", "devices", "mesh", "micro-batches", "samples in each", "ZeRO", "recomputation",
        *(f"{phase}, ms" for phase in phases),
    ]  # fmt: skip
    rows = [
        [
            stage.name, block_range(stage.blocks), ranges(stage.devices), _mesh(stage), str(stage.micro_batches),
            str(stage.samples), zero(stage), recompute(stage),
            *(_milliseconds(seconds.get((index, phase))) for phase in phases),
        ]
        for index, stage in enumerate(plan.stages)
    ]  # fmt: skip
    return _table("Stages", head, rows, words=4)


def edges(stages: StageGraph, plan: Plan, forms: Forms | None) -> str:
    """A row for each stage: what it reads, the longest path from it on, and what it holds."""
    shown = {"": plan} if forms is None else {" by the graph": forms.graph, " as a chain": forms.chain}
    head = [
        "stage",
        "reads",
        "longest path",
        *(f"{what}{of}" for what in ("micro-batches held", "GiB") for of in shown),
    ]
    rows = []
    for index, stage in enumerate(plan.stages):
        reads = ", ".join(
            f"{plan.stages[edge.maker].name} ({size(edge.size_bytes)})" for edge in stages.edges if edge.reader == index
        )
        costs = [each.predicted.breakdown.stages[index] for each in shown.values()]
        rows.append([
            stage.name, reads or "–", str(stages.behind[index]), *(str(cost.in_flight) for cost in costs),
            *(_gib(cost.memory.total) for cost in costs),
        ])  # fmt: skip
    return _table("Graph of stages", head, rows, words=2)


def devices(simulation: Simulation, plan: Plan, groups: Sequence[Lane]) -> str:
    """A row for each group of devices: where the step's seconds go."""
    head = ["devices", "stages", "computing, ms", "collectives, ms", "waiting, ms", "busy", "sending, ms", "moved, GiB"]
    rows = []
    for lane in groups:
        use = simulation.use[lane.first]
        parts = (use.compute_seconds, use.collective_seconds, use.waiting_seconds)
        busy = use.busy_seconds / simulation.step_seconds if simulation.step_seconds else 0.0
        rows.append([
            *name(plan, lane), *map(_milliseconds, parts), f"{busy:.1%}", _milliseconds(use.sending_seconds),
            _gib(use.moved_bytes),
        ])  # fmt: skip
    return _table("Seconds of each device", head, rows, words=2)


def memory(simulation: Simulation, plan: Plan, groups: Sequence[Lane]) -> str:
    """A row for each group of devices: what it holds at its peak."""
    items = next(iter(simulation.peaks.values())).items()
    rows = []
    for lane in groups:
        peak = simulation.peaks[lane.first]
        rows.append([*name(plan, lane), *map(_gib, peak.items().values()), _gib(peak.total)])
    return _table("Memory of each device at its peak, GiB", ["devices", "stages", *items, "all"], rows, words=2)


def _mesh(stage: Stage) -> str:
    """Its axes that are larger than 1, but that of the micro-batches."""
    axes: Iterable[Axis] = (axis for axis in stage.axes if axis.size > 1 and axis.name != "micro")
    return " × ".join(f"{axis.name} {axis.size}" for axis in axes) or "–"


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.4g}"


def _gib(size: float) -> str:
    value = size / GIB
    return f"{value:.3f}" if value >= 0.1 or not value else f"{value:.3g}"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """``words``: so many columns from the left are words, the others numbers."""

    def cell(tag: str, column: int, content: str, **more: str) -> str:
        look = {"class_": "words"} if column < words else {}
        return element(tag, escape(content), **look, **more)

    top = element("tr", *(cell("th", column, text, scope="col") for column, text in enumerate(head)))
    body = [
        element("tr", cell("th", 0, row[0], scope="row"), *(cell("td", c, text) for c, text in enumerate(row[1:], 1)))
        for row in rows
    ]
    return element("table", element("caption", caption), element("thead", top), element("tbody", *body))
