"""A real text to learn from: a file of the user's, or the language reference that comes with every Python."""

from __future__ import annotations

from pathlib import Path

from partita.errors import InputError


def load_text(path: str | Path | None, seq: int) -> bytes:
    """The text as bytes, each of which is a token. InputError when it can't be read or is shorter than a sample."""
    if path is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics)).encode()
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    if len(text) <= seq:
        raise InputError(
            f"{path}: the text has {len(text)} bytes; a sample takes {seq} tokens of a byte each, so at least "
            f"{seq + 1} are needed (or a smaller --seq)"
        )
    return text
