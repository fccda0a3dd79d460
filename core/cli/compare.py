"""``partita compare``: plans side by side in simulation, from files or as a grid of hand-made ones for a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from partita.problem import Problem
    from partita.simulate.grid import Entry
    from partita.simulate.wins import Contender

EXAMPLES = """\b
Examples:
  partita compare gpt3-6.7b --cluster 4x8xa100-80gb --global-batch 512
  partita compare one.json two.json
"""
OWN = "partita"


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|PLAN.json...", show_default=False, help="A model as in partita plan, or files of plans."
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
    """Simulate plans side by side, and say why the best wins.

    For a MODEL these are the best of each kind that people make by hand (data parallel, ZeRO, tensor parallel,
    pipelines and their products) and the planner's own.
    """
    from partita.cli import answer
    from partita.cli.explain import is_plan
    from partita.errors import InputError

    plans = [name for name in models if is_plan(name)]
    left_out: list[Entry] = []
    if plans:
        if odd := [name for name in models if name not in plans]:
            raise InputError(f'"{odd[0]}" is no plan\'s file; compare plans with plans, or one MODEL with the grid')
        if seq or precision or optimizer or memory_gib or target or fix or global_batch:
            raise InputError(
                "plans state their own problem; only --model, --cluster, --devices and --profile go with them"
            )
        contenders = from_files(plans, of, cluster, devices, profile)
    else:
        if of is not None:
            raise InputError(f"--model {of} goes with files of plans; {models[0]} is a model itself")
        if len(models) > 1:
            raise InputError(f"{len(models)} models ({', '.join(models)}): one is compared with the grid at a time")
        contenders, left_out = from_grid(
            options.problem_of_model(
                models[0],
                cluster,
                devices,
                global_batch,
                seq,
                precision,
                optimizer,
                memory_gib,
                target,
                fix,
                profile,
            )
        )
    if as_json:
        answer.write_json(document(contenders, left_out))
    else:
        answer.write(text(contenders, left_out))


def from_files(
    paths: Sequence[str], model: str | None, cluster: str | None, devices: int | None, profile: str | None
) -> list[Contender]:
    """The plans of the files, the fastest first."""
    from partita.cli import planned
    from partita.plan import load_plan
    from partita.simulate import simulate
    from partita.simulate.wins import Contender, ranked

    found = []
    for path in paths:
        plan = load_plan(path)
        graph = planned.model_of(plan, path, model)
        machine = planned.machine_of(plan, path, graph, cluster, devices, profile)
        found.append(Contender(path, plan, simulate(graph, plan, machine)))
    return ranked(found)


def from_grid(problem: Problem) -> tuple[list[Contender], list[Entry]]:
    """The planner's own plan and the hand-made ones that fit, the fastest first; and the others."""
    from partita.cli.plan import search
    from partita.cost.alike import alike
    from partita.simulate import simulate
    from partita.simulate.grid import hand_made
    from partita.simulate.wins import Contender, ranked
    from partita.simulated import captured

    plans = [(OWN, search(problem)[0])]
    entries = hand_made(problem)
    plans += [(entry.name, entry.plan) for entry in entries if entry.plan is not None]
    groups = alike(problem.graph)
    found = []
    for name, plan in plans:
        graph = captured(problem, plan) or problem.graph
        known = groups if graph is problem.graph else None
        found.append(Contender(name, plan, simulate(graph, plan, problem.cluster, known)))
    return ranked(found), [entry for entry in entries if entry.plan is None]


def document(contenders: Sequence[Contender], left_out: Sequence[Entry]) -> dict[str, Any]:
    """What ``--json`` prints."""
    from partita.cli import show
    from partita.simulate.wins import reasons

    return {
        "best": contenders[0].name,
        "plans": [
            {
                "name": found.name, "model": found.plan.model, "cluster": found.plan.cluster,
                "global_batch": found.plan.global_batch, "schedule": found.plan.order.generator,
                "dp": found.plan.stages[0].dp, "tp": found.plan.stages[0].tp, "pp": len(found.plan.stages),
                "micro_batches": found.plan.stages[0].micro_batches,
                "zero": show.zero(found.plan.stages[0]), "recompute": show.recompute(found.plan.stages[0]),
                "step_seconds": found.simulation.step_seconds,
                "samples_per_second": 1 / found.sample_seconds if found.sample_seconds else 0.0,
                "predicted_seconds": found.plan.predicted.step_seconds,
                "peak_bytes": found.peak_bytes,
                "bubble_fraction": found.simulation.bubble_fraction,
                "moved_bytes": found.moved_bytes,
                "parts": found.parts,
            }
            for found in contenders
        ],
        "left_out": [{"name": entry.name, "reason": entry.reason} for entry in left_out],
        "reasons": reasons(contenders),
    }  # fmt: skip


def text(contenders: Sequence[Contender], left_out: Sequence[Entry]) -> str:
    """What is printed for people."""
    from partita.cli import show
    from partita.simulate.wins import reasons

    plan = contenders[0].plan
    batches = {found.plan.global_batch for found in contenders}
    parts: list[Any] = [
        f"{plan.model} on {plan.cluster}"
        + (f": {plan.global_batch} samples a step" if len(batches) == 1 else ": compared by the samples of a second"),
        "", _table(contenders),
    ]  # fmt: skip
    if left_out:
        parts += ["", "not in the table", *(show.bullet(f"{entry.name}: {entry.reason}.") for entry in left_out)]
    why = reasons(contenders)
    if why:
        parts += ["", f"why {contenders[0].name} wins", *map(show.bullet, why)]
    return show.render(parts)


def _table(contenders: Sequence[Contender]) -> Table:
    from partita.cli import show

    table = show.grid(
        "plan", "dp·tp·pp", "micro", "ZeRO", "again", "step", "predicted", "samples/s", "GiB", "bubble", "GiB moved"
    )
    for found in contenders:
        stage, simulation = found.plan.stages[0], found.simulation
        table.add_row(
            found.name, f"{stage.dp}·{stage.tp}·{len(found.plan.stages)}",
            f"{stage.micro_batches}×{stage.samples // stage.dp}",
            show.zero(stage), show.recompute(stage),
            show.duration(simulation.step_seconds), show.duration(found.plan.predicted.step_seconds),
            f"{1 / found.sample_seconds:.4g}" if found.sample_seconds else "", f"{found.peak_bytes / options.GIB:.2f}",
            f"{simulation.bubble_fraction:.1%}", f"{found.moved_bytes / options.GIB:.3f}",
        )  # fmt: skip
    return table
