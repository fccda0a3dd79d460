"""``partita plan --format``: the best plan of another planner's profile, under that planner's own cost."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from partita.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from partita.workload.answer import WorkloadPlan
    from partita.workload.asked import Asked, Format


def plan_workload(
    name: str, path: str, asked: Asked, others: Mapping[str, object], limit: float | None, output: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Plan, write and print. ``others``: options of a model, which a profile has no use for."""
    from partita.cli import answer
    from partita.files import write_text
    from partita.planner.joint.compiled import is_kept
    from partita.workload.answer import document
    from partita.workload.formats import format_of

    given = [option for option, value in others.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} is of a model; with --format {name} the profile says what is planned")
    form = format_of(name)
    if not is_kept(form.compiled):
        print("partita: the search is compiled at its first use; that takes some 20 seconds, once", file=sys.stderr)
    start = time.monotonic()
    try:
        found, devices = form.solve(path, asked, math.inf if limit is None else start + limit)
    except TimeoutError:
        raise InputError(f"no plan was found in {limit:g} s; a longer --time-limit may find one") from None
    seconds = time.monotonic() - start
    made = dict(document(found, name, path, devices))
    if output is not None:
        write_text(output, json.dumps(made, indent=1) + "\n")
    if as_json:
        made["search"]["seconds"] = seconds
        answer.write_json(made)
    else:
        from partita.cli.show import render

        head = f"{path} ({name}) on {devices} {'devices' if devices > 1 else 'device'}"
        slowest = f"the slowest stage takes {found.seconds_per_sample:.6g} s a {form.sample}"
        text = render([f"{head}: {slowest}", "", table(found, form), "", proof(found, seconds)])
        answer.write(text + (f"\nwritten: {output}" if output is not None else ""))


def table(plan: WorkloadPlan, form: Format) -> Table:
    """One row a stage."""
    from partita.cli.options import GIB
    from partita.cli.show import block_range, grid

    stages = plan.stages
    columns = {
        "on": [stage.on for stage in stages],
        "dp": [str(stage.data_parallel) for stage in stages],
        "tp": [str(stage.tensor_parallel) for stage in stages],
        "recomputed": [f"{len(stage.recomputed)} of {len(stage.nodes)}" for stage in stages],
    }
    told = {
        "on": any(stage.on != "accelerator" for stage in stages),
        "dp": any(stage.data_parallel > 1 for stage in stages),
        "tp": any(stage.tensor_parallel > 1 for stage in stages),
        "recomputed": any(stage.recomputed for stage in stages),
    }
    shown = {column: texts for column, texts in columns.items() if told[column]}
    rows = grid("stage", "nodes", *shown, f"s a {form.sample}", form.bytes_are)
    slowest = max(range(len(plan.stages)), key=lambda index: plan.stages[index].seconds)
    for index, stage in enumerate(plan.stages):
        mark = " slowest" if index == slowest and len(plan.stages) > 1 else ""
        own = [texts[index] for texts in shown.values()]
        seconds = f"{stage.seconds:.6g}{mark}"
        rows.add_row(str(index), block_range(stage.nodes), *own, seconds, f"{stage.bytes / GIB:.3g}")
    return rows


def proof(plan: WorkloadPlan, seconds: float) -> str:
    """How the plan was found and what is proven of it."""
    from partita.cli.show import duration

    bound = f"no plan takes less than {plan.bound_seconds:.6g} s"
    if plan.optimal:
        proven = f"optimal: {bound}"
    else:
        proven = f"not proven: {bound}, {plan.gap:.2%} less"
    return f"found in {duration(seconds)} among {plan.sets:,} downward-closed sets of nodes; {proven}"
