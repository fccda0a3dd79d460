"""``partita export``: reads a plan, writes it for a framework, and says what the files leave open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from partita.plan import Plan
    from partita.plugins.export.exported import Exported

EXAMPLES = """\b
Examples:
  partita export plan.json --to deepspeed -o exported/
  partita export plan.json --to megatron -o megatron.args
  partita export plan.json --to trainer --json
"""

FRAMEWORKS = ("deepspeed", "megatron", "trainer", "accelerate")


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", show_default=False, help="A plan's file.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="NAME", show_default=False, help="deepspeed, megatron, trainer or accelerate."),
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE|FOLDER", help="Write here. Default: print what would be written."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")] = False,
) -> None:
    """Write a plan for a framework that you start yourself.

    What the framework can't express is refused with the reasons, and the exit status is 1.
    """
    from partita.cli import answer
    from partita.plan import load_plan
    from partita.plugins.export.write import write

    exported = exporter(to)(load_plan(plan))
    written = [] if output is None else write(exported, Path(output), folder=output.endswith("/"))
    if as_json:
        answer.write_json(
            {
                "to": to,
                "processes": exported.processes,
                "files": dict(exported.files),
                "written": [str(path) for path in written],
                "notes": list(exported.notes),
            }
        )
    else:
        answer.write(text(exported, written))


def exporter(to: str) -> Callable[[Plan], Exported]:
    """What writes plans for a framework; InputError for an unknown name."""
    from partita.errors import InputError, nearest

    if to not in FRAMEWORKS:
        raise InputError(f'there is no framework "{to}" to export to.{nearest(to, FRAMEWORKS)}')
    from partita.plugins.export import accelerate, deepspeed, megatron, trainer

    return {"deepspeed": deepspeed, "megatron": megatron, "trainer": trainer, "accelerate": accelerate}[to].export


def text(exported: Exported, written: list[Path]) -> str:
    """What is printed for people: the paths, or the files themselves; then what they leave open."""
    lines = [f"written: {path}" for path in written]
    if not written:
        for name in exported.files:
            lines += [f"{name}:", exported.text(name)]
    count = exported.processes
    lines.append(f"for {exported.framework} on {count} process{'es' if count > 1 else ''}")
    return "\n".join([*lines, *(f"  - {note}" for note in exported.notes)])
