"""``partita explain``: why a plan is what it is, from its file or from a problem stated on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from partita.cli.binding import Limit
    from partita.cli.stage_graph import Shown
    from partita.plan import Plan
    from partita.planner.what_if import Asked
    from partita.simulate.stage_graph import StageGraph

EXAMPLES = """\b
Examples:
  partita explain plan.json
  partita explain one.json two.json
  partita explain gpt3-6.7b --cluster 4x8xa100-80gb --global-batch 512
"""


def explain(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAN.json|MODEL...",
            show_default=False,
            help="A plan's file, two files to see what differs, or a model as in partita plan.",
        ),
    ],
    cluster: options.OfModelCluster = None,
    global_batch: options.OfModelGlobalBatch = None,
    devices: options.Devices = None,
    seq: options.Seq = None,
    precision: options.OfModelPrecision = None,
    optimizer: options.OfModelOptimizer = None,
    memory_gib: options.MemoryGib = None,
    target: options.OfModelTarget = None,
    fix: options.Fix = None,
    profile: options.OfPlanProfile = None,
    of: options.OfPlanModel = None,
    as_json: options.Json = False,
) -> None:
    """Say why a plan is what it is: what binds in time and memory, stage by stage, what the alternatives cost, and what
    more memory, devices or samples would change. Of two plans, what differs.
    """
    from partita.cli import answer, asked_again, planned, stage_graph
    from partita.errors import InputError, PartitaError

    if len(models) > 1:
        if of is not None:
            raise InputError(f"--model {of} goes with one plan's file; two are told apart without their models")
        answer_difference(models, as_json)
        return
    (model,) = models
    if is_plan(model):
        given = {
            "--global-batch": global_batch, "--seq": seq, "--precision": precision, "--optimizer": optimizer,
            "--memory-gib": memory_gib, "--target": target, "--fix": fix,
        }  # fmt: skip
        extra = [name for name, value in given.items() if value]
        if extra:
            raise InputError(f"{model} is a plan and states its own problem; leave out {', '.join(extra)}")
        from partita.plan import load_plan

        found = load_plan(model)
        question, why, graph, machine = None, "", None, None
        try:
            graph = planned.model_of(found, model, of)
            machine = planned.machine_of(found, model, graph, cluster, devices, profile)
            question, why = asked_again.problem_of(found, graph, machine)
        except PartitaError as error:
            why = str(error)
    else:
        if model.endswith(".json") and not Path(model).exists():
            raise InputError(f"{model}: no such file")
        if of is not None:
            raise InputError(f"--model {of} goes with a plan's file; {model} is a model itself")
        from partita.cli.plan import search
        from partita.simulated import captured

        question, why = (
            options.problem_of_model(
                model, cluster, devices, global_batch, seq, precision, optimizer, memory_gib, target, fix, profile
            ),
            "",
        )
        found, _ = search(question)
        graph, machine = captured(question, found), question.cluster
    shown = stage_graph.of_model(graph, found, machine, why)
    asked = None
    if question is not None:
        from partita.planner import what_if

        asked = what_if.asked(question)
    limit = None if question is None else question.memory_limit_of
    if as_json:
        answer.write_json(document(found, asked, limit, why, shown))
    else:
        answer.write(text(found, asked, limit, why, shown))


def is_plan(path: str) -> bool:
    """Whether the file holds a JSON object with stages, whatever its name; InputError where it is broken JSON.

    A recipe's name is never a file's, as in ``partita plan``.
    """
    from partita.files import read_json
    from partita.hooks import recipes

    if path in recipes() or not Path(path).is_file():
        return False
    value = read_json(path)
    return isinstance(value, dict) and "stages" in value


def answer_difference(names: Sequence[str], as_json: bool) -> None:
    """Print what differs between two plans' files."""
    from partita.cli import answer, differing
    from partita.errors import InputError
    from partita.plan import load_plan

    if odd := [name for name in names if not is_plan(name)]:
        raise InputError(f'"{odd[0]}" is no plan\'s file; two files of plans can be told apart, or one MODEL explained')
    if len(names) > 2:
        raise InputError(f"{len(names)} plans: two at a time are told apart")
    one, two = (load_plan(name) for name in names)
    if as_json:
        answer.write_json(differing.document(one, two))
    else:
        answer.write(differing.text(one, two, *names))


def document(plan: Plan, asked: Asked | None, limit: Limit | None, why: str, shown: Shown) -> dict[str, Any]:
    """What ``--json`` prints. ``limit``: devices' bytes, where they are known; ``why``: why nothing was asked."""
    from partita.cli import asked_again, stage_graph
    from partita.cli.binding import binds, heaviest, paces, slowest

    costs, stages = plan.predicted.breakdown.stages, shown.stages
    found, slow = paces(plan, stages), slowest(plan, stages)
    cost, item = heaviest(plan)
    return {
        "model": plan.model,
        "cluster": plan.cluster,
        "binds": {
            "time": {"stage": costs[slow].name, "term": found[slow].binds},
            "memory": {"stage": cost.name, "item": item, "bytes": cost.memory.total},
        },
        "stages": [
            {
                "name": cost.name, "pace_seconds": pace.seconds, "term": pace.binds, "in_flight": cost.in_flight,
                "binds": binds(plan, index, limit, stages),
                "memory": {**cost.memory.items(), "total": cost.memory.total},
            }
            for index, (cost, pace) in enumerate(zip(costs, found, strict=True))
        ],
        "reasons": list(plan.reasons),
        "search": asdict(plan.search),
        "asked": {"why_not": why} if asked is None else asked_again.document(asked),
        **stage_graph.document(shown, plan),
    }  # fmt: skip


def text(plan: Plan, asked: Asked | None, limit: Limit | None, why: str, shown: Shown) -> str:
    """What is printed for people; arguments as of ``document``."""
    from partita.cli import asked_again, show, stage_graph
    from partita.cli.binding import heaviest, paces, slowest

    costs, stages = plan.predicted.breakdown.stages, shown.stages
    found, slow = paces(plan, stages), slowest(plan, stages)
    cost, item = heaviest(plan)
    sentences = [
        f"Time: {costs[slow].name} sets the pace with its {found[slow].binds}, "
        f"{show.duration(found[slow].seconds)} a micro-batch.",
        f"Memory: {cost.name} is the heaviest, {cost.memory.total / options.GIB:.2f} GiB a device; "
        f"most of it is {item} ({cost.memory.items()[item] / options.GIB:.2f} GiB).",
    ]
    again = asked_again.text(asked) if asked else [f"what ifs aren't asked: {why}"]
    return show.render(
        [
            show.heading(plan), "", "what binds", *map(show.bullet, sentences), "", _times(plan, limit, stages), "",
            _memory(plan), *stage_graph.text(shown, plan, plan.reasons), "",
            *show.reasons(plan), "", *again, "", f"formula: {plan.predicted.breakdown.formula}",
            show.found(plan, None),
        ]
    )  # fmt: skip


def _times(plan: Plan, limit: Limit | None, stages: StageGraph | None) -> Table:
    """Milliseconds of one micro-batch, by stage."""
    from partita.cli import show
    from partita.cli.binding import binds, paces

    table = show.grid("ms a micro-batch", "forward", "backward", "transfer", "pace", "set by", "in flight", "binds")
    for index, (cost, pace) in enumerate(zip(plan.predicted.breakdown.stages, paces(plan, stages), strict=True)):
        transfer = cost.transfer_forward_seconds + cost.transfer_backward_seconds
        seconds = (cost.forward_seconds, cost.backward_seconds, transfer, pace.seconds)
        numbers = (f"{1e3 * value:.4g}" for value in seconds)
        said = " and ".join(binds(plan, index, limit, stages))
        table.add_row(cost.name, *numbers, pace.binds, str(cost.in_flight), said)
    return table


def _memory(plan: Plan) -> Table:
    """GiB on each device of a stage, by item."""
    from partita.cli import show

    costs = plan.predicted.breakdown.stages
    table = show.grid("GiB a device", *costs[0].memory.items(), "total")
    for cost in costs:
        sizes = (*cost.memory.items().values(), cost.memory.total)
        table.add_row(cost.name, *(f"{size / options.GIB:.3f}" for size in sizes))
    return table
