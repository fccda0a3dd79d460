"""The key ``"partita"`` in a DeepSpeed configuration: what may stand under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from partita.errors import InputError, nearest
from partita.noticing import KEY
from partita.planner.fix import parse_fix

OPTIONS = ("cluster", "memory_gib", "plan", "pipeline", "tensor_parallel", "seq", "fix", "dry_run")
SWITCHES = ("on", "off", "auto")
# Far beyond any device: what is written above it is a slip.
LARGEST_GIB = 2**30

Switch = Literal["on", "off", "auto"]


@dataclass(frozen=True)
class Key:
    """``cluster`` as on the command line (None: what this job runs on); ``memory_bytes`` of each device; ``plan``, a
    file, in the place of planning; ``seq``, the tokens of a sample that are planned for; ``fix``, decisions by name."""

    cluster: str | None = None
    memory_bytes: int | None = None
    plan: str | None = None
    pipeline: Switch = "auto"
    tensor_parallel: Switch = "auto"
    seq: int | None = None
    fix: Mapping[str, int | str] = field(default_factory=dict)
    dry_run: bool = False


def parse_key(value: Any) -> Key:
    """The options of the key; InputError for an unknown one, with the nearest, and for values that can't be.

    ``null`` means that an option isn't given.
    """
    if not isinstance(value, Mapping):
        raise InputError(f'"{KEY}": {value!r}; an object is needed, and {{}} will do')
    for name in value:
        if name not in OPTIONS:
            raise InputError(f'"{KEY}" has no option "{name}".{nearest(str(name), OPTIONS)}')
    given = {name: option for name, option in value.items() if option is not None}
    found = Key(
        cluster=_word(given, "cluster"),
        memory_bytes=_memory(given.get("memory_gib")),
        plan=_word(given, "plan"),
        pipeline=_switch(given, "pipeline"),
        tensor_parallel=_switch(given, "tensor_parallel"),
        seq=_seq(given.get("seq")),
        fix=_fix(given.get("fix")),
        dry_run=_flag(given, "dry_run"),
    )
    if found.plan is not None:
        idle = [name for name in OPTIONS if name not in ("plan", "cluster", "dry_run") and name in given]
        if idle:
            raise InputError(
                f'"{KEY}": plan names a finished plan, and {" and ".join(idle)} would do nothing; remove either'
            )
    for switch, decision in (("pipeline", "pp"), ("tensor_parallel", "tp")):
        if decision in found.fix and getattr(found, switch) != "auto":
            raise InputError(
                f'"{KEY}": {switch} is "{getattr(found, switch)}" and fix holds {decision}={found.fix[decision]}; '
                "remove one of the two"
            )
    return found


def _word(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise InputError(f'"{KEY}.{name}": {value!r}; a word is needed')
    return value


def _memory(value: Any) -> int | None:
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A comparison: an integer that is too large for a float can't be asked whether it is finite.
    if not number or not 2**-30 <= value <= LARGEST_GIB:
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
        raise InputError(f'"{KEY}.memory_gib": {shown}; a number of GiB is needed, such as 80')
    return int(value * 2**30)


def _switch(given: Mapping[str, Any], name: str) -> Switch:
    value = given.get(name, "auto")
    if isinstance(value, bool):
        return "on" if value else "off"
    if value not in SWITCHES:
        raise InputError(f'"{KEY}.{name}": {value!r}; it is "on", "off" or "auto"')
    found: Switch = value
    return found


def _seq(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(f'"{KEY}.seq": {value!r}; a number of tokens is needed, such as 2048')
    return value


def _fix(value: Any) -> dict[str, int | str]:
    """Decisions as an object, ``{"tp": 4}``, or as the command line has them, ``["tp=4"]`` or ``"tp=4"``."""
    if value is None:
        return {}
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        value = [f"{name}={decision}" for name, decision in value.items()]
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(f'"{KEY}.fix": {value!r}; decisions are written {{"tp": 4, "recompute": "full"}}')
    try:
        return parse_fix(value)
    except InputError as error:
        raise InputError(f'"{KEY}.fix": {error}') from None


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f'"{KEY}.{name}": {value!r}; it is true or false')
    return value
