"""The graph of a plan's stages as text and as JSON, for the verbs that show it; of a chain both are empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita.cli.options import GIB

if TYPE_CHECKING:
    from rich.padding import Padding
    from rich.table import Table

    from partita.cluster import Cluster
    from partita.graph import Graph
    from partita.plan import Plan
    from partita.simulate.stage_graph import Edge, Forms, StageGraph


@dataclass(frozen=True)
class Shown:
    """The graph of a plan's stages, and the plan in both forms where they are compared; ``why`` one isn't there."""

    stages: StageGraph | None
    forms: Forms | None = None
    why: str = ""


def of_model(graph: Graph | None, plan: Plan, cluster: Cluster | None, why: str) -> Shown:
    """From the plan's model and cluster; ``why`` they aren't known. A step that takes long to simulate isn't."""
    from partita.errors import PlanError
    from partita.simulate.stage_graph import forms, stage_graph
    from partita.simulated import TURNS, turns

    if graph is None:
        return Shown(None, None, why)
    try:
        stages = stage_graph(graph, plan)
        if stages.is_chain:
            return Shown(stages)
        if cluster is not None and turns(plan) <= TURNS:
            return Shown(stages, forms(graph, plan, cluster))
    except PlanError as error:
        return Shown(None, None, str(error))
    if cluster is not None:
        why = f"a step has {turns(plan):,} turns; partita simulate plays both."
    return Shown(stages, None, f"Not simulated beside a chain: {why}")


def text(shown: Shown, plan: Plan, said: Sequence[str]) -> list[Table | Padding | str]:
    """An empty line, a table of the stages and the sentence beneath it, which isn't repeated where it is one of those
    that are ``said`` elsewhere."""
    from partita.cli import show
    from partita.simulate.stage_graph import sentence

    if shown.stages is None:
        return ["", f"the graph of stages isn't shown: {shown.why}"] if plan.schedule == "kfkb" else []
    if shown.stages.is_chain:
        return []
    words = [sentence(shown.stages, shown.forms), shown.why]
    return [
        "", _table(shown.stages, plan, shown.forms), *(show.bullet(each) for each in words if each and each not in said)
    ]  # fmt: skip


def document(shown: Shown, plan: Plan) -> dict[str, Any]:
    """The key ``stage_graph`` and what stands under it."""
    stages = shown.stages
    if stages is None:
        return {"stage_graph": {"why_not": shown.why}} if plan.schedule == "kfkb" else {}
    if stages.is_chain:
        return {}
    names = [stage.name for stage in plan.stages]
    return {
        "stage_graph": {
            "schedule": plan.order.words,
            "longest_path": [names[stage] for stage in stages.longest],
            "layers": [[names[stage] for stage in layer] for layer in stages.layers],
            "edges": [
                {"from": names[edge.maker], "to": names[edge.reader], "values": list(edge.values),
                 "bytes_per_micro_batch": edge.size_bytes}
                for edge in stages.edges
            ],
            "by_graph": None if shown.forms is None else _form(shown.forms.graph),
            "as_chain": None if shown.forms is None else _form(shown.forms.chain),
        }
    }  # fmt: skip


def size(size_bytes: float) -> str:
    """Bytes of messages, in the unit that reads best."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes:.0f} bytes"


def _form(plan: Plan) -> dict[str, Any]:
    predicted = plan.predicted
    return {
        "schedule": plan.order.words,
        "in_flight": [stage.in_flight for stage in predicted.breakdown.stages],
        "stage_bytes": [stage.memory.total for stage in predicted.breakdown.stages],
        "peak_bytes": predicted.peak_bytes,
        "step_seconds": predicted.step_seconds,
        "bubble_fraction": predicted.bubble_fraction,
    }


def _table(stages: StageGraph, plan: Plan, forms: Forms | None) -> Table:
    """What each stage reads, bytes a micro-batch of the maker; the longest path from it on; what it holds."""
    from partita.cli import show

    if forms is None:
        shown, columns = [plan], ["in flight"]
    else:
        shown, columns = [forms.graph, forms.chain], ["held by graph", "as chain", "GiB by graph", "as chain"]
    table = show.grid("stage graph", "reads", "path", *columns)
    table.columns[1].justify = "left"
    for index, stage in enumerate(plan.stages):
        reads = ", ".join(_read(edge, plan) for edge in stages.edges if edge.reader == index) or "-"
        costs = [each.predicted.breakdown.stages[index] for each in shown]
        sizes = [f"{cost.memory.total / GIB:.3f}" for cost in costs if forms is not None]
        table.add_row(stage.name, reads, str(stages.behind[index]), *(str(cost.in_flight) for cost in costs), *sizes)
    return table


def _read(edge: Edge, plan: Plan) -> str:
    return f"{plan.stages[edge.maker].name} ({size(edge.size_bytes)})"
