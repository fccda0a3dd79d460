"""A plan function by the name that a user gives: one of the library, or ``file.py:name`` of his own."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Iterable
from pathlib import Path

from partita.draft import Draft, PlanFunction
from partita.errors import InputError, PartitaError, nearest
from partita.hooks import plugins


def library() -> dict[str, PlanFunction]:
    """Every plan function by its name. InputError where two plugins offer one name."""
    found: dict[str, PlanFunction] = {}
    for offered in plugins().hook.partita_library():
        for name, function in offered.items():
            if name in found:
                raise InputError(f'two plugins offer a plan "{name}"; uninstall one of them')
            found[name] = function
    return found


def plan_function(text: str) -> PlanFunction:
    """The function that the text names. InputError for one that isn't there or that can't be loaded."""
    path, colon, name = text.rpartition(":")
    if not colon:
        known = library()
        if text in known:
            return known[text]
        raise InputError(f'there is no plan "{text}" in the library.{nearest(text, known)} Your own is file.py:name.')
    if not Path(path).is_file():
        raise InputError(f'"{text}": there is no file {path} here ({Path.cwd()})')
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f'"{text}": {path} is no Python file')
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f'"{text}": {path} can\'t be run: {type(error).__name__}: {error}') from error
    function = getattr(module, name, None)
    if not callable(function):
        has = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise InputError(f'"{text}": {path} has no function "{name}".{nearest(name, has)}')
    return _own(function, text)


def _own(function: PlanFunction, text: str) -> PlanFunction:
    """The user's function, whose errors are said to be its own."""

    def own(draft: Draft) -> None:
        try:
            function(draft)
        except PartitaError:
            raise
        except (Exception, SystemExit) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise InputError(
                f'"{text}" failed with {type(error).__name__}: {error} ({Path(place.filename).name}, line '
                f"{place.lineno}); the same command with --debug shows where"
            ) from error

    return own


def numbers(texts: Iterable[str]) -> dict[str, int]:
    """The numbers of a plan function, from texts such as ``tp=2``. InputError quotes one that isn't of that form."""
    found: dict[str, int] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if not name.isidentifier() or not value.lstrip("-").isdigit() or len(value) > 9:
            raise InputError(f'"{text}" is no number for a plan function; they are written tp=2')
        if name in found:
            raise InputError(f'"{text}": {name} is given twice, also as {name}={found[name]}')
        found[name] = int(value)
    return found
