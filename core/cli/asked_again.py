"""``partita explain``: what a plan's problem would be answered with one thing changed, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.padding import Padding
    from rich.table import Table

    from partita.cluster import Cluster
    from partita.graph import Graph
    from partita.plan import Plan
    from partita.planner.what_if import Asked
    from partita.problem import Problem


def problem_of(plan: Plan, graph: Graph, cluster: Cluster) -> tuple[Problem | None, str]:
    """The problem of a plan's file, of its model and cluster; or None and why it can't be asked again.

    A file holds the digest of its problem: limits and held decisions are known only where there are none.
    InputError for what no problem may say.
    """
    from partita.problem import Problem

    found = Problem(graph, cluster, plan.global_batch, plan.precision, plan.optimizer, plan.target)
    if found.digest != plan.problem:
        return None, (
            "the plan answers a question with more in it than its file holds (a memory limit, held decisions); "
            "partita explain MODEL with the same options asks it again"
        )
    return found, ""


def text(asked: Asked) -> list[Table | Padding | str]:
    """Tables of the alternatives and of the changed questions, and the decision that matters most."""
    from partita.cli import show

    base = asked.step_seconds
    alternatives = show.grid("the next best", "step", "more")
    for other in asked.alternatives:
        alternatives.add_row(other.words, show.duration(other.step_seconds), more(other.step_seconds, base))
    changed = show.grid("what if", "step", "samples/s", "change", "best then")
    for change in asked.changes:
        if change.step_seconds is None or change.samples_per_second is None:
            changed.add_row(change.change, "-", "-", "-", change.words)
        else:
            per_sample = (base / asked.samples, 1 / change.samples_per_second)
            mark = "" if change.proven else " (not proven)"
            changed.add_row(
                change.change, show.duration(change.step_seconds), f"{change.samples_per_second:.4g}",
                more(per_sample[1], per_sample[0]) + mark, change.words,
            )  # fmt: skip
    changed.columns[-1].justify = "left"
    parts: list[Table | Padding | str] = [f"under the formula the best takes {show.duration(base)}"]
    if asked.alternatives:
        parts += ["", alternatives]
    return [*parts, "", changed, "", *([show.bullet(asked.sentence)] if asked.sentence else [])]


def more(seconds: float, than: float) -> str:
    """By what share a time is longer, with its sign."""
    return f"{(seconds / than - 1) * 100:+.1f} %" if than else "-"


def document(asked: Asked) -> dict[str, Any]:
    """What ``--json`` prints of it."""
    most = asked.matters_most
    return {
        "step_seconds": asked.step_seconds,
        "alternatives": [asdict(other) for other in asked.alternatives],
        "what_if": [asdict(change) for change in asked.changes],
        "matters_most": None if most is None else most.change,
    }
