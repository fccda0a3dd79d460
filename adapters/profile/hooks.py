"""The verb ``profile`` as a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def partita_verbs(app: typer.Typer) -> None:
    from partita.adapters.profile import verb

    app.command("profile", epilog=verb.EXAMPLES)(verb.profile)
