"""``partita verify``: a plan on virtual devices beside one device, in float64."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partita.cli import options

if TYPE_CHECKING:
    from partita.plan import Plan

EXAMPLES = """\b
Examples:
  partita verify plan.json
  partita verify plan.json --model my_models:build --json
  partita verify gpt3-tiny --plan-function interleaved --devices 4 --global-batch 8 --fix chunks=2
"""


def verify(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN.json|MODEL", show_default=False, help="A plan's file, or a model as in partita plan."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Of a plan's file: the model. Default: what the plan names, where it can."),
    ] = None,
    plan_function: Annotated[
        str | None,
        typer.Option(
            "--plan-function", metavar="NAME",
            help="Of a MODEL: a plan of the library (interleaved, co-shard …), or your own function, file.py:name.",
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(parser=options.whole_number, metavar="N", help="Of a MODEL: virtual devices.")
    ] = None,
    global_batch: options.OfModelGlobalBatch = None,
    seq: options.Seq = None,
    fix: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of a MODEL: a number for the plan function.")
    ] = None,
    as_json: options.Json = False,
) -> int:  # fmt: skip
    """Prove that a plan computes what one device computes: losses, gradients, and parameters after 3 steps of Adam.

    Its queues run on virtual devices in this process, in float64. The exit status is 1 where something differs: the
    first op, the device and the slice are said.
    """
    from partita.cli import answer
    from partita.cli.explain import is_plan
    from partita.cli.planned import name_of
    from partita.errors import InputError
    from partita.plan import load_plan

    if find_spec("torch") is None:
        raise InputError("verify runs the model and needs torch, which is not installed: pip install 'partita[torch]'")
    if is_plan(plan):
        given = {"--plan-function": plan_function, "--devices": devices, "--global-batch": global_batch, "--seq": seq,
                 "--fix": fix}  # fmt: skip
        if extra := [name for name, value in given.items() if value]:
            raise InputError(f"{plan} is a plan and states its own problem; leave out {', '.join(extra)}")
        found = load_plan(plan)
        name = name_of(found, plan, model)
    else:
        found, name = _of_model(plan, model, plan_function, devices, global_batch, seq, fix or []), plan
    from partita.adapters.verify import report
    from partita.adapters.verify.planned import module_of, verify_plan

    verdict = verify_plan(found, *module_of(name, found.seq), plan)
    if as_json:
        answer.write_json(report.document(verdict))
    else:
        answer.write(report.text(verdict, found))
    return 0 if verdict.equal else 1


def _of_model(
    name: str, model: str | None, function: str | None, devices: int | None, global_batch: int | None, seq: int | None,
    fix: list[str],
) -> Plan:  # fmt: skip
    """The plan of a plan function for a MODEL."""
    from partita.draft import drafted
    from partita.drafted import library, numbers, plan_function
    from partita.errors import InputError

    if name.endswith(".json") and not Path(name).exists():
        raise InputError(f"{name}: no such file")
    if model is not None:
        raise InputError(f"--model {model} goes with a plan's file; {name} is a model itself")
    if function is None:
        raise InputError(
            f"{name} is a model and no plan: --plan-function must say which, one of {', '.join(sorted(library()))}, or "
            "file.py:name"
        )
    if devices is None or global_batch is None:
        missing = [word for word, value in (("--devices", devices), ("--global-batch", global_batch)) if value is None]
        raise InputError(f"{name} is a model and no plan: {' and '.join(missing)} must say what it is planned for")
    problem = options.problem(name, "cpu", devices, global_batch, seq, "fp64", "adam", None, "partita", ())
    return drafted(plan_function(function), function, problem, numbers(fix))
