"""Writing the answer: the one place that writes on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer

from partita.errors import InputError


def write(text: str) -> None:
    """Write the answer. A reader that has gone away ends the process quietly; a full disk is an InputError."""
    if sys.stdout is None:
        raise InputError("the answer can't be written: stdout is closed")
    try:
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would be complained about when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
    except OSError as error:
        raise InputError(f"the answer can't be written on stdout: {error.strerror}") from None
    except UnicodeEncodeError as error:
        raise InputError(
            f'the encoding of stdout, {error.encoding}, has no "{error.object[error.start]}"; '
            "PYTHONIOENCODING=utf-8 helps"
        ) from None


def write_json(document: Any) -> None:
    """Write one JSON document."""
    write(json.dumps(document, indent=1))
