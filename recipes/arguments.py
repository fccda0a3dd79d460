"""The command line of a rank: the model comes first, and its recipe adds the files that it learns from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from partita.hooks import recipes
from partita.recipes.recipe import Files, TrainedRecipe


def parse(
    parser: argparse.ArgumentParser, description: str, words: Sequence[str]
) -> tuple[TrainedRecipe, Files, argparse.Namespace]:
    """The recipe of the model that the words name, the files given to it, and what ``parser`` reads there."""
    known = {name: recipe for name, recipe in recipes().items() if isinstance(recipe, TrainedRecipe)}
    whole = argparse.ArgumentParser(description=description)
    models = whole.add_subparsers(dest="model", required=True, metavar="MODEL", help=", ".join(known))
    for name, recipe in known.items():
        one = models.add_parser(name, parents=[parser], description=description)
        for option, text in recipe.files.items():
            one.add_argument(f"--{option}", metavar="FILE", help=text)
    found = whole.parse_args(words)
    recipe = known[found.model]
    return recipe, {option: getattr(found, option) for option in recipe.files}, found
