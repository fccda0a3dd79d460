"""The graph of stages: a box for each, in the column of the longest path behind it, and an edge for what it reads."""

from __future__ import annotations

from itertools import pairwise

from partita.cli.show import block_range, ranges
from partita.cli.stage_graph import size
from partita.plan import Plan, Stage
from partita.planner.words import gib
from partita.plugins.report.columns import Columns, columns
from partita.plugins.report.svg import cut, element, number, text, title
from partita.simulate.stage_graph import Edge, Forms, StageGraph

# Pixels: a box, of which a letter takes about six; from column to column, where an edge first runs straight under its
# words; around it all.
WIDE, HIGH, BETWEEN, STRAIGHT, EDGE = 192, 72, 124, 62, 4
PITCH = WIDE + BETWEEN
LETTERS, LINE = 30, 15


def drawing(stages: StageGraph, plan: Plan, forms: Forms | None) -> str:
    """The picture; ``plan`` has the prediction of its simulation."""
    found = columns(stages.layers, [(edge.maker, edge.reader) for edge in stages.edges], HIGH)
    column = {stage: at for at, layer in enumerate(stages.layers) for stage in layer}
    marked = set[tuple[int, int]]() if stages.is_chain else set(pairwise(stages.longest))
    on_path = {stage for pair in marked for stage in pair}
    boxes = [
        _box(plan, forms, index, (column[index] * PITCH, top, height), index in on_path)
        for index, (top, height) in enumerate(zip(found.tops, found.heights, strict=True))
    ]
    edges = [
        _edge(edge, plan, column[edge.maker], found, number_, (edge.maker, edge.reader) in marked)
        for number_, edge in enumerate(stages.edges)
    ]
    width, height = len(stages.layers) * PITCH - BETWEEN + 2 * EDGE, found.height + 2 * EDGE
    return element(
        "svg", *edges, *boxes, width=width, height=height, role="img", class_="graph",
        viewBox=f"{-EDGE} {-EDGE} {number(width)} {number(height)}",
        aria_label=f"The graph of stages: {len(plan.stages)} boxes in {stages.depth} columns, an edge from each to "
        "those that read it. " + " ".join(_words(edge, plan) for edge in stages.edges),
    )  # fmt: skip


def _box(plan: Plan, forms: Forms | None, index: int, place: tuple[float, float, float], marked: bool) -> str:
    """``place``: x, y and the height."""
    x, top, height = place
    stage, cost = plan.stages[index], plan.predicted.breakdown.stages[index]
    held = f"holds {_micro_batches(cost.in_flight)}"
    hint = [stage.name, ", ".join(stage.blocks), _devices(stage), f"{held}, {gib(cost.memory.total)} a device"]
    if forms is not None:
        both = [form.predicted.breakdown.stages[index] for form in (forms.graph, forms.chain)]
        held = f"holds {both[0].in_flight} by graph, {both[1].in_flight} as chain"
        hint[-1] = "; ".join(
            f"{name} it holds {_micro_batches(one.in_flight)}, {gib(one.memory.total)} a device"
            for name, one in zip(("by the graph", "as a chain"), both, strict=True)
        )
    lines = [stage.name, block_range(stage.blocks), _devices(stage), held]
    first = top + (height - LINE * len(lines)) / 2 + 11
    words = [
        text(x + 8, first + LINE * row, cut(line, LETTERS), "quiet" if row else "name")
        for row, line in enumerate(lines)
    ]
    look = "stage longest" if marked else "stage"
    ground = element("rect", class_=look, x=x, y=top, width=WIDE, height=height, rx=4)
    return element("g", title("\n".join(hint)), ground, *words, data_stage=str(index))


def _edge(edge: Edge, plan: Plan, column: int, found: Columns, number_: int, marked: bool) -> str:
    way = found.ways[number_]
    left = column * PITCH
    parts = [f"M{number(left + WIDE)} {number(way[0])}"]
    for at, y in enumerate(way[1:]):
        # Through the column on a lane, straight as far as words may stand, and over to the next column.
        bend, end = left + WIDE + STRAIGHT, left + WIDE + BETWEEN
        middle = (bend + end) / 2
        parts.append(
            f"H{number(bend)}C{number(middle)} {number(way[at])} {number(middle)} {number(y)} {end} {number(y)}"
        )
        left += WIDE + BETWEEN
    look = "edge longest" if marked else "edge"
    line = element("path", class_=look, d="".join(parts))
    tip = element("path", class_=f"{look} tip", d=f"M{left - 6} {number(way[-1] - 3.5)}l6 3.5l-6 3.5")
    label = text(column * PITCH + WIDE + 5, way[0] - 3, size(edge.size_bytes), "quiet")
    return element("g", title(_words(edge, plan)), line, tip, label, data_edge=f"{edge.maker} {edge.reader}")


def _words(edge: Edge, plan: Plan) -> str:
    maker, reader = (plan.stages[stage].name for stage in (edge.maker, edge.reader))
    return f"{reader} reads {size(edge.size_bytes)} of {maker} for one of its micro-batches."


def _devices(stage: Stage) -> str:
    return f"device{'s' * (len(stage.devices) > 1)} {ranges(stage.devices)}"


def _micro_batches(count: int) -> str:
    return f"{count} micro-batch{'es' * (count != 1)}"
