"""Files that appear whole or not at all, and why one couldn't be written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from partita.errors import InputError

PROBE_BYTES = 2**20


def write_whole(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make the file under another name beside it, and give it its own. InputError where it can't be."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    except Exception as error:
        failure = unwritten(path, error, temporary)
        _remove(temporary)
        # The traceback of what isn't the disk's fault says where it came from.
        raise failure from (None if failure.__cause__ is None else error)


def unwritten(path: str | Path, error: Exception, written: str | Path) -> InputError:
    """What is said of a file for which writing to ``written`` failed. Its cause is the error, where it isn't the
    system that refused.

    The writers of torch and safetensors keep the system's reason to themselves: one more write to the same place asks
    for it again.
    """
    refused = error if isinstance(error, OSError) else _refused(Path(written))
    if refused is not None:
        return InputError(f"{path}: can't be written: {refused.strerror or refused}")
    failure = InputError(f"{path}: can't be written: {type(error).__name__}: {str(error).split(chr(10))[0]}")
    failure.__cause__ = error
    return failure


def _refused(path: Path) -> OSError | None:
    try:
        with path.open("ab", buffering=0) as file:
            left = PROBE_BYTES
            while left:
                left -= file.write(b"\0" * left)
    except OSError as error:
        return error
    return None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # What is said is why it couldn't be written.
        pass
