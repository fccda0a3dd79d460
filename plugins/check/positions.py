"""The lines on which the keys of a JSON text stand. The text is known to be valid: nothing is checked here."""

from __future__ import annotations

import json
import re

Path = tuple[str | int, ...]

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def key_lines(text: str) -> dict[Path, int]:
    """The line of every key, by the path that leads to it; items of lists are counted from 0 and have no line."""
    found: dict[Path, int] = {}
    # The key or the index that is being filled, one a container that is open.
    path: list[str | int] = []
    objects: list[bool] = []
    key_next = False
    line, seen = 1, 0
    for token in TOKEN.finditer(text):
        word = token[0]
        line += text.count("\n", seen, token.start())
        seen = token.start()
        if word in ("{", "["):
            path.append("" if word == "{" else 0)
            objects.append(word == "{")
            key_next = word == "{"
        elif word in ("}", "]"):
            path.pop()
            objects.pop()
            key_next = False
        elif word == "," and objects[-1]:
            key_next = True
        elif word == ",":
            index = path[-1]
            assert isinstance(index, int)
            path[-1] = index + 1
        elif key_next:
            path[-1] = json.loads(word)
            found[tuple(path)] = line
            key_next = False
    return found
