"""``partita verify``: a plan on virtual devices beside one device, in float64."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from partita.cli import options

EXAMPLES = """\b
Examples:
  partita verify plan.json
  partita verify plan.json --model my_package.models:tiny --json
"""


def verify(
    plan: Annotated[str, typer.Argument(metavar="PLAN.json", show_default=False, help="A plan's file.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="As in partita plan. Default: the plan's, where it is a recipe or a file."),
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Prove that a plan computes what one device computes: losses, gradients, and parameters after 3 steps of Adam.

    Its queues run on virtual devices in this process, in float64. The exit status is 1 where something differs; the
    first op, the device and the slice are named.
    """
    from partita.cli import answer
    from partita.cli.planned import name_of
    from partita.errors import InputError
    from partita.plan import load_plan

    found = load_plan(plan)
    if find_spec("torch") is None:
        raise InputError("verify runs the model and needs torch, which is not installed: pip install 'partita[torch]'")
    from partita.adapters.verify import report
    from partita.adapters.verify.planned import module_of, verify_plan

    verdict = verify_plan(found, *module_of(name_of(found, plan, model), found.seq), plan)
    if as_json:
        answer.write_json(report.document(verdict))
    else:
        answer.write(report.text(verdict, found))
    return 0 if verdict.equal else 1
