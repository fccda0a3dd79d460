"""``partita run``: hands a recipe's name and the rest of the command line to the recipe."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """\b
Examples:
  partita run gpt3-tiny
  partita run gpt3-tiny --help
"""


def run(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", show_default=False, help="A recipe, such as gpt3-tiny.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPTIONS OF THE RECIPE]...", show_default=False, help="Handed to the recipe as they are."
        ),
    ] = None,
) -> int:
    """Train a recipe with its plan.

    What stands after the recipe's name is the recipe's own: `partita run gpt3-tiny --help` says what it takes.
    """
    from partita.errors import ModelError, nearest
    from partita.hooks import recipes

    known = recipes()
    if recipe not in known:
        raise ModelError(f'there is no recipe "{recipe}".{nearest(recipe, known)}')
    return known[recipe].run(recipe, arguments or ())
