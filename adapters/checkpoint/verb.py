"""``partita reshard``: a checkpoint that was written under one plan, or by none, written for another."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options

EXAMPLES = """\b
Examples:
  partita reshard checkpoints --to plan.json -o for_plan
  partita reshard checkpoints/global_step200 --to safetensors -o dense
  partita reshard model.safetensors --to plan.json --model my_models:build -o for_plan
"""


def reshard(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", show_default=False,
            help="A DeepSpeed folder (or one checkpoint of it), safetensors, a distributed checkpoint of torch's "
            "or Megatron's.",
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="PLAN.json", show_default=False,
                          help="The plan that goes on from it; or safetensors, the dense model; or megatron, its own "
                          "GPT model."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", show_default=False, help="The folder that is made.")
    ],
    saved_by: Annotated[
        str | None,
        typer.Option("--from", metavar="PLAN.json", help="The plan that saved it. Default: as the checkpoint says."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model. Default: what the plan names, where it can."),
    ] = None,
    as_json: options.Json = False,
) -> int:  # fmt: skip
    """Write a checkpoint for another plan: parameters and optimizer state, in the pieces that its ranks load.

    It is read a few MiB at a time and never changed. The output appears whole or not at all; a run that was stopped
    goes on where it was when it is started again.
    """
    from partita.cli import answer
    from partita.errors import InputError

    if find_spec("torch") is None:
        raise InputError("reshard needs torch, which is not installed: pip install 'partita[torch]'")
    from partita.adapters.checkpoint import report
    from partita.adapters.checkpoint.convert import convert

    result = convert(checkpoint, to, out, saved_by, model, progress=report.progress)
    if as_json:
        answer.write_json(report.document(result))
    else:
        answer.write(report.text(result))
    return 0
