"""Megatron's arguments out of a file: a bare argument list, or the shell script that starts the run.

A shell script is not executed. Flags are taken where they stand, in arrays, strings and commands alike; variables that
the script sets to a plain value are put in, and a value that stays unknown is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from partita.plugins.check.tables import arity

WORD = re.compile(r'"([^"]*)"|\'([^\']*)\'|([^\s"\'()\\;]+)')
COMMENT = re.compile(r"(^|\s)#.*$")
ASSIGNED = re.compile(
    r"""^\s*(?:(?:export|readonly|local)\s+)?([A-Za-z_]\w*)=(?:"([^"\s]*)"|'([^'\s]*)'|([^\s"'();]+))"""
)
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
FLAG = re.compile(r"--[A-Za-z]")
SINGLE_FLAG = re.compile(r"(?:^|[\s\"'(])--[a-z]")


@dataclass
class Arguments:
    """Values by flag (None: a switch), the line of each, what is odd as (flag, sentence), values that stay unknown."""

    values: dict[str, str | None] = field(default_factory=dict)
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict)
    remarks: list[tuple[str, str]] = field(default_factory=list)
    unset: dict[str, str] = field(default_factory=dict)


def looks_like_arguments(text: str) -> bool:
    """Whether the text has flags at all."""
    return any(SINGLE_FLAG.search(COMMENT.sub("", line)) for line in text.splitlines())


def read_arguments(text: str) -> Arguments:
    """The flags of the text in order; of a flag that stands twice the last one counts, as in Megatron itself."""
    found = Arguments()
    variables = dict(_assignments(text))
    words = [(_expanded(word, variables), line) for word, line in _words(text)]
    kinds = arity()
    position = 0
    while position < len(words):
        word, line = words[position]
        position += 1
        if not FLAG.match(word):
            continue
        flag, equals, value = word.partition("=")
        if (dashed := flag.replace("_", "-")) in kinds and flag not in kinds and dashed.startswith(_LAUNCHER):
            flag = dashed
        taken = [value] if equals else []
        most = {"switch": 0, "values": len(words)}.get(kinds.get(flag, "one"), 1)
        while len(taken) < most and position < len(words) and not FLAG.match(words[position][0]):
            taken.append(words[position][0])
            position += 1
        _add(found, flag, taken, line, kinds.get(flag, ""))
    return found


# torchrun takes its own flags with underscores too; Megatron's parser doesn't.
_LAUNCHER = ("--nproc", "--nnodes", "--node", "--master", "--rdzv", "--max", "--monitor", "--log", "--start", "--local")


def _add(found: Arguments, flag: str, taken: list[str], line: int, kind: str) -> None:
    given = " ".join(taken) if taken else None
    if (key := (flag,)) in found.lines and found.values[flag] != given:
        found.remarks.append(
            (flag, f"{flag} stands twice: {found.values[flag]} on line {found.lines[key]}, and {given}, which counts")
        )
    if kind == "one" and not taken:
        found.remarks.append((flag, f"{flag} needs a value and has none"))
    if given and "$" in given:
        found.unset[flag] = given
        given = None
    found.values[flag] = given
    found.lines[key] = line


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """Variables that are set to one word. What refers to itself, such as ``A=${A:-4}``, keeps its default."""
    known: dict[str, str] = {}
    for line in text.splitlines():
        if match := ASSIGNED.match(COMMENT.sub("", line)):
            name, *values = match.groups()
            known[name] = _expanded(next(value for value in values if value is not None), known)
            yield name, known[name]


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return variables.get(name, match[0] if default is None else default)

    return VARIABLE.sub(value, word)


def _words(text: str) -> Iterator[tuple[str, int]]:
    """Words with their lines. A quoted text that is itself a list of arguments gives its words."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in WORD.finditer(COMMENT.sub("", line)):
            word = next(group for group in match.groups() if group is not None)
            if FLAG.match(word.strip()) and " " in word.strip():
                yield from ((part, number) for part in word.split())
            else:
                yield word, number
