"""A file that a reader refuses, in words that name the file and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from partita.errors import InputError


def assert_refused(read: Callable[[str], object], file: Path, text: str, facts: Sequence[str]) -> None:
    """The message begins with the file and has each of ``facts``."""
    file.write_text(text)
    with pytest.raises(InputError) as refusal:
        read(str(file))
    assert [fact for fact in [f"{file.name}: ", *facts] if fact not in str(refusal.value)] == []
