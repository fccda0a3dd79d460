"""The verb ``check``, registered with the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def partita_verbs(app: typer.Typer) -> None:
    from partita.plugins.check import verb

    app.command("check", epilog=verb.EXAMPLES)(verb.check)
