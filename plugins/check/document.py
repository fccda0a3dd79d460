"""A configuration as it was read: values, the line of each key, and which kind of configuration it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from partita.plugins.check.finding import Place

Kind = Literal["deepspeed", "training_arguments", "megatron", "accelerate"]
NAMES: Mapping[Kind, str] = {
    "deepspeed": "DeepSpeed configuration",
    "training_arguments": "TrainingArguments",
    "megatron": "Megatron arguments",
    "accelerate": "accelerate configuration",
}


@dataclass(frozen=True)
class Document:
    """``values`` of a Megatron argument list are texts by flag, None for a switch.

    ``prefix`` is where an object that stands inside another file begins; ``lines`` are those of the whole file.
    ``remarks``: what is odd about the file itself, as (path, sentence). ``unset``: flags whose value is a variable that
    the file doesn't set.
    """

    file: str
    kind: Kind
    values: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int]
    prefix: tuple[str, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    unset: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str) -> Any:
        """The value at a dotted path, None where it isn't written."""
        value: Any = self.values
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        return value

    def has(self, path: str) -> bool:
        """Whether the dotted path is written, whatever stands there."""
        parent, _, key = path.rpartition(".")
        value = self.get(parent) if parent else self.values
        return isinstance(value, Mapping) and key in value

    def place(self, path: str = "") -> Place:
        """Where a dotted path stands; of one that isn't written, the line of the nearest key above it."""
        keys = (*self.prefix, *(path.split(".") if path else ()))
        line = next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), None)
        return Place(self.file, line, ".".join(keys))
