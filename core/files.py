"""Reading and writing the user's files: errors with file, line and field; writes that are whole or absent."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from partita.errors import InputError

T = TypeVar("T")


def read_text(path: str | Path) -> str:
    """The text of a file; InputError when it can't be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, a file is needed") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None


def read_json(path: str | Path) -> Any:
    """The JSON value in a file; InputError with line and column where it is broken, or where a key occurs twice.

    Also an InputError: nesting deeper than the interpreter's stack, integers of more digits than it converts.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
            raise InputError(f'{path}: the key "{twice}" occurs twice in one object')
        return found

    text = read_text(path)
    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        line = text.split("\n")[error.lineno - 1].strip()
        hint = " JSON has no comments." if line.startswith(("//", "#", "/*")) else ""
        raise InputError(
            f"{path}: line {error.lineno}, column {error.colno}: broken JSON: {error.msg}.{hint}"
            + (f" The line is: {line[:80]}" if line else "" if text.strip() else " The file is empty.")
        ) from None
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"{path}: its objects and lists are nested too deeply to be read") from None
    except ValueError as error:
        # What is left is an integer with more digits than Python converts.
        raise InputError(f"{path}: a number can't be read: {str(error).split(';')[0]}") from None


def describe(error: ValidationError) -> str:
    """What pydantic found, one clause a problem: the field, what stands there, what is wanted."""
    clauses = []
    for problem in error.errors()[:5]:
        where = ".".join(str(part) for part in problem["loc"]) or "the whole value"
        given = repr(problem["input"])
        given = given if len(given) <= 60 else given[:57] + "..."
        clauses.append(f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]} (found {given})")
    return "; ".join(clauses)


def parse_json(path: str | Path, adapter: TypeAdapter[T]) -> T:
    """A typed value from a JSON file; InputError names the file and every wrong field."""
    return typed(path, read_json(path), adapter)


def typed(path: str | Path, value: Any, adapter: TypeAdapter[T]) -> T:
    """The same of what was read from the file."""
    try:
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        raise InputError(f"{path}: {describe(error)}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a text file through a temporary file beside it, so that a killed process leaves the old one."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"{path}: can't be written: {error.strerror}") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
