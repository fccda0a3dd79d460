"""From the user's files to documents: which kind each one is, found from its content."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.errors import InputError
from partita.files import read_json, read_text
from partita.plugins.check.document import NAMES, Document, Kind
from partita.plugins.check.finding import Finding, problem, warning
from partita.plugins.check.positions import key_lines
from partita.plugins.check.shell import looks_like_arguments, read_arguments
from partita.plugins.check.tables import table

FORMS = (
    "A CONFIG is a DeepSpeed JSON, a TrainingArguments JSON, an accelerate JSON that names a DeepSpeed one, or a file "
    "with Megatron's arguments (an argument list or a shell script)"
)


def read_documents(paths: Sequence[str]) -> dict[Kind, Document]:
    """The documents by kind; InputError where one can't be read, or where two don't go together."""
    found: dict[Kind, Document] = {}
    for path in paths:
        document = read_document(path)
        if document.kind in found:
            raise InputError(
                f"{found[document.kind].file} and {path} are both {NAMES[document.kind]}; one of a kind is checked"
            )
        found[document.kind] = document
    if "megatron" in found and len(found) > 1:
        others = " and ".join(other.file for kind, other in found.items() if kind != "megatron")
        raise InputError(f"{found['megatron'].file} has Megatron's arguments and is checked alone, without {others}")
    return found


def read_document(path: str) -> Document:
    """One file as a document."""
    text = read_text(path)
    start = text.lstrip()[:1]
    if start in ("{", "[") or path.endswith(".json"):
        value = read_json(path)
        if not isinstance(value, dict):
            raise InputError(f"{path} holds a JSON {_kind(value)}, and an object is needed. {FORMS}")
        return Document(path, _json_kind(path, value), value, key_lines(text))
    if not looks_like_arguments(text):
        raise InputError(f"{path} is no JSON and has no flag such as --num-layers. {FORMS}")
    arguments = read_arguments(text)
    remarks = tuple(arguments.remarks)
    return Document(path, "megatron", arguments.values, arguments.lines, remarks=remarks, unset=arguments.unset)


def _kind(value: Any) -> str:
    words = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return words.get(type(value), "number")


def _json_kind(path: str, value: Mapping[str, Any]) -> Kind:
    """The kind whose table knows more of the keys; what is known to be something else is an InputError.

    ``fp16`` and ``bf16`` are sections in one and switches in the other.
    """
    for keys, what in (
        ({"stages", "predicted"}, "a plan of Partita"),
        ({"ops", "blocks"}, "a saved graph"),
        ({"model_type"}, "a model's configuration (give it as --model)"),
    ):
        if keys <= value.keys():
            raise InputError(f"{path} is {what}. {FORMS}")
    if "distributed_type" in value:
        return "accelerate"
    sections = {"fp16", "bf16"}
    deepspeed = sum(key in table("deepspeed_keys")["keys"] or key == "partita" for key in value)
    trainer = sum(key in table("training_arguments")["keys"] for key in value)
    for key in sections & value.keys():
        deepspeed -= not isinstance(value[key], dict)
        trainer -= isinstance(value[key], dict)
    return "training_arguments" if trainer > deepspeed else "deepspeed"


def launched(documents: dict[Kind, Document]) -> tuple[dict[Kind, Document], int | None]:
    """The documents without accelerate's, whose DeepSpeed configuration takes its place, and the processes it starts.

    InputError where it names none: then nothing of it can be checked.
    """
    launcher = documents.get("accelerate")
    if launcher is None:
        return documents, None
    rest: dict[Kind, Document] = {kind: document for kind, document in documents.items() if kind != "accelerate"}
    value = launcher.get("deepspeed_config.deepspeed_config_file")
    if isinstance(value, str) and "deepspeed" not in rest:
        path = _found(value, launcher.file)
        if path is None:
            place = launcher.place("deepspeed_config.deepspeed_config_file")
            raise InputError(f'{place} names "{value}": no such file here ({os.getcwd()}) or beside it')
        rest["deepspeed"] = read_document(path)
    if "deepspeed" not in rest:
        raise InputError(f"{launcher.file} is accelerate's and names no deepspeed_config_file. {FORMS}")
    processes = launcher.get("num_processes")
    return rest, processes if isinstance(processes, int) and processes > 0 else None


def _found(name: str, beside: str) -> str | None:
    """A file that another one names: from here, as the framework looks for it, or beside the other."""
    return next((str(path) for path in (Path(name), Path(beside).parent / name) if path.is_file()), None)


def named_deepspeed(documents: dict[Kind, Document]) -> tuple[dict[Kind, Document], list[Finding]]:
    """The documents with the DeepSpeed configuration that the TrainingArguments name or hold, and what is wrong."""
    trainer = documents.get("training_arguments")
    given = documents.get("deepspeed")
    value = trainer.get("deepspeed") if trainer else None
    if trainer is None or value is None:
        if trainer and given:
            place = trainer.place("deepspeed")
            return documents, [
                warning(place, f'{trainer.file} doesn\'t name {given.file}: the Trainer would run without DeepSpeed',
                        f'"deepspeed": "{given.file}"')
            ]  # fmt: skip
        return documents, []
    place = trainer.place("deepspeed")
    if isinstance(value, dict):
        if given:
            message = f"the Trainer uses the configuration that stands here, not {given.file}; {given.file} is checked"
            return documents, [warning(place, message)]
        inner = replace(trainer, kind="deepspeed", values=value, prefix=("deepspeed",))
        return {**documents, "deepspeed": inner}, []
    if not isinstance(value, str):
        return documents, [problem(place, f"deepspeed is {value!r}; a file's name or an object is needed")]
    if given:
        same = Path(value).name == Path(given.file).name
        message = f"the Trainer reads {value}, and {given.file} is checked"
        return documents, [] if same else [warning(place, message)]
    path = _found(value, trainer.file)
    if path is None:
        return documents, [problem(place, f'deepspeed names "{value}": no such file here ({os.getcwd()}) or beside it')]
    inner = read_document(path)
    if inner.kind != "deepspeed":
        raise InputError(f"{trainer.file} names {path} for DeepSpeed, and that is {NAMES[inner.kind]}")
    return {**documents, "deepspeed": inner}, []
