"""``partita run RECIPE``: plan it, start the ranks, and (if asked) prove the losses equal to one device's.

This process imports no torch: it plans, prints, and starts others.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options
from partita.plan import Plan, load_plan
from partita.recipes.check import check_model, check_numbers, check_target, check_unstated, check_wishes
from partita.recipes.recipe import TrainedRecipe
from partita.recipes.start import shared_words, start_one_device, start_ranks


def main(recipe: TrainedRecipe, name: str, arguments: Sequence[str]) -> int:
    """Parse the options and run the recipe; the exit status is 1 where the losses differ."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    def command(
        context: typer.Context,
        devices: Annotated[int, typer.Option(help="Processes on this machine.")] = 4,
        cluster: Annotated[str, typer.Option(help="What to plan for; cpu means processes on this machine.")] = "cpu",
        plan: Annotated[Path | None, typer.Option(help="Run this plan instead of making one.")] = None,
        global_batch: Annotated[int, typer.Option(help="Samples in a step.")] = 16,
        seq: options.Seq = None,
        steps: Annotated[int, typer.Option(help="Training steps.")] = 20,
        precision: options.Precision = "fp32",
        target: options.OfPlanTarget = None,
        fix: options.Fix = None,
        plan_function: options.PlanFunction = None,
        learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 1e-3,
        seed: Annotated[int, typer.Option(help="Of weights and samples.")] = 0,
        checkpoint: Annotated[Path | None, typer.Option(help="Save a checkpoint here at the end.")] = None,
        resume: Annotated[Path | None, typer.Option(help="Go on from a checkpoint of this plan's.")] = None,
        comparing: Annotated[
            bool, typer.Option("--compare", help="Train on one device too; exit 1 if not equal.")
        ] = False,
        **files: Path | None,
    ) -> int:
        check_numbers(steps, learning_rate, seed)
        if plan is not None:
            check_unstated(context, plan)
            chosen = load_plan(plan)
        else:
            chosen = _plan(name, cluster, devices, global_batch, seq, precision, target, fix or [], plan_function)
        check_model(name, chosen, str(plan))
        check_target(chosen)
        check_wishes(chosen, comparing, checkpoint, resume)
        # The ranks read the files again; here a mistake is said once, and before they start.
        recipe.check(chosen, str(plan), files)
        words = shared_words(steps, learning_rate, seed, files)
        words += ["--resume", str(resume)] if resume else []
        with tempfile.TemporaryDirectory(prefix="partita-") as folder:
            status = start_ranks(name, chosen, words, Path(folder), checkpoint)
            if status or not comparing:
                return status
            return start_one_device(name, chosen, words, Path(folder))

    about = f"Plan {name}, train it on {recipe.samples}, and compare with one device if asked."
    app.command(help=about)(_with_files(command, recipe.files))
    return int(app(args=list(arguments), prog_name=f"partita run {name}", standalone_mode=False) or 0)


def _with_files(command: Callable[..., int], files: Mapping[str, str]) -> Callable[..., int]:
    """The command with an option for each of the recipe's files, where its signature has only ``**files``."""
    signature = inspect.signature(command, eval_str=True)
    shared = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    own = [
        inspect.Parameter(
            option, inspect.Parameter.KEYWORD_ONLY, default=None,
            annotation=Annotated[Path | None, typer.Option(metavar="FILE", help=text)],
        )
        for option, text in files.items()
    ]  # fmt: skip
    command.__signature__ = signature.replace(parameters=[*shared, *own])  # type: ignore[attr-defined]
    return command


def _plan(
    name: str, cluster: str, devices: int, global_batch: int, seq: int | None, precision: str, target: str | None,
    fix: Sequence[str], function: str | None,
) -> Plan:  # fmt: skip
    from partita.cli.plan import by_function, search
    from partita.cli.show import plan_text

    stated = (name, cluster, devices if cluster == "cpu" else None, global_batch, seq, precision, "adam", None)
    if function is not None:
        found, seconds = by_function(options.problem(*stated, target or "partita", ()), name, function, fix)
    else:
        found, seconds = search(options.problem(*stated, target or "deepspeed", fix))
    print(plan_text(found, seconds), flush=True)
    return found
