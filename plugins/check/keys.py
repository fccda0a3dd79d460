"""Unknown and misspelt keys, at every level, with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from partita.errors import InputError
from partita.key import OPTIONS, parse_key
from partita.plugins.check.document import Document
from partita.plugins.check.finding import Finding, problem, warning
from partita.plugins.check.tables import arity, table

# How alike a key and a known one must be to be taken for a slip: a swapped, lost or doubled letter is one.
ALIKE = 0.8


def key_findings(document: Document) -> Iterator[Finding]:
    """Findings for all keys of a document that its framework doesn't know."""
    if document.kind == "deepspeed":
        yield from _removed(document)
        yield from _deepspeed(document, document.values, table("deepspeed_keys")["keys"], ())
        yield from _parameters(document)
    elif document.kind == "training_arguments":
        yield from _trainer(document)
    else:
        yield from (warning(document.place(flag), sentence) for flag, sentence in document.remarks)
        yield from _megatron(document)


def slip(key: str, known: Iterable[str]) -> str | None:
    """The known word that the key is a misspelling of."""
    # People switch a key off by writing "_" before it.
    if key.startswith("_"):
        return None
    return next(iter(difflib.get_close_matches(key, list(known), 1, ALIKE)), None)


def _removed(document: Document) -> Iterator[Finding]:
    version = table("deepspeed_keys")["version"]
    for path in table("deepspeed_keys")["removed"]:
        if document.has(path):
            yield problem(
                document.place(path), f"{path} is gone from DeepSpeed {version}, which refuses to start with it",
                f"leave out {path}",
            )  # fmt: skip


def _deepspeed(
    document: Document, values: Mapping[str, Any], known: Mapping[str, Any], above: tuple[str, ...]
) -> Iterator[Finding]:
    removed = table("deepspeed_keys")["removed"]
    for key, value in values.items():
        path = ".".join((*above, key))
        if path == "partita":
            yield from _partita(document, value)
        elif path in removed:
            continue
        elif key not in known:
            yield _unknown(document, path, key, known, ".".join(above))
        elif isinstance(known[key], dict) and isinstance(value, Mapping):
            yield from _deepspeed(document, value, known[key], (*above, key))
        elif isinstance(known[key], dict) and not (path == "zero_optimization" and isinstance(value, bool)):
            yield problem(document.place(path), f"{path} is {value!r}; an object is needed")


def _unknown(document: Document, path: str, key: str, known: Mapping[str, Any], section: str) -> Finding:
    version, place = table("deepspeed_keys")["version"], document.place(path)
    refuses = section in table("deepspeed_keys")["refuses"]
    effect = f"DeepSpeed {version} refuses to start" if refuses else "it has no effect"
    if path == "fp16.type":
        return problem(
            place,
            f"unknown key {path}: fp16 has no type, and as written the run is asked for in fp16 ({effect})",
            '"bf16": {"enabled": true} in place of fp16',
        )
    if near := slip(key, known):
        return problem(place, f'unknown key {path}: did you mean "{near}"? ({effect})', near)
    if homes := list(_homes(key, table("deepspeed_keys")["keys"], ())):
        return problem(place, f"unknown key {path}: {key} belongs in another section ({effect})", *homes)
    return (problem if refuses else warning)(place, f"unknown key {path}: {effect}", f"leave out {path}")


def _homes(key: str, known: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    """Where else a key exists, for one that was written a level too high or too low. ``enabled`` and its like, which
    many sections have, tell nothing."""
    found = []
    for name, below in known.items():
        if name == key:
            found.append(".".join((*above, name)))
        if isinstance(below, dict):
            found += _homes(key, below, (*above, name))
    yield from found if len(found) <= 2 else ()


def _partita(document: Document, value: Any) -> Iterator[Finding]:
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in OPTIONS]
        for key in unknown:
            near = slip(key, OPTIONS)
            hint = f'did you mean "{near}"?' if near else f"known: {', '.join(OPTIONS)}"
            place = document.place(f"partita.{key}")
            yield problem(place, f"unknown option partita.{key}; {hint}", *[near] if near else [])
        value = {key: option for key, option in value.items() if key not in unknown}
    try:
        parse_key(value)
    except InputError as error:
        yield problem(document.place("partita"), str(error))


def _parameters(document: Document) -> Iterator[Finding]:
    """Parameters of the optimizer and of the scheduler, which their constructors refuse when they don't know them."""
    for section, name in (("optimizer", "optimizer_params"), ("scheduler", "scheduler_params")):
        kind, given = document.get(f"{section}.type"), document.get(f"{section}.params")
        tables: Mapping[str, list[str]] = {key.lower(): names for key, names in table("deepspeed_keys")[name].items()}
        known = tables.get(str(kind).lower())
        if known is None or not isinstance(given, Mapping):
            continue
        for key in given:
            if key not in known:
                near = slip(key, known)
                hint = f'did you mean "{near}"?' if near else f"known: {', '.join(known)}"
                path = f"{section}.params.{key}"
                yield problem(document.place(path), f"{kind} takes no {key}; {hint}", *[near] if near else [])


def _trainer(document: Document) -> Iterator[Finding]:
    known, version = table("training_arguments")["keys"], table("training_arguments")["version"]
    for key in document.values:
        if key in known:
            continue
        place = document.place(key)
        if near := slip(key, known):
            yield problem(place, f'unknown key {key}: did you mean "{near}"? (transformers {version} refuses it)', near)
        else:
            known_to = f"TrainingArguments of transformers {version} have no {key}"
            yield warning(place, f"{known_to}: it works only in a script that reads it itself")


def _megatron(document: Document) -> Iterator[Finding]:
    known, version = arity(), table("megatron_flags")["version"]
    for flag in document.values:
        if flag in known:
            continue
        place = document.place(flag)
        if near := slip(flag, known):
            yield problem(place, f"unknown flag {flag}: did you mean {near}? (Megatron refuses to start)", near)
        else:
            yield warning(place, f"{flag} is no flag of Megatron-core {version}'s own scripts and isn't checked")
