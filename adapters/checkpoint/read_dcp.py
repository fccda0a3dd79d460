"""Reading torch's distributed checkpoint: Partita's own, and others of a model and an optimizer under their names.

What a name is, is told by where it stood in the dict that was saved: ``state`` → NAME → ``exp_avg`` is an optimizer's,
a path of one name or ``model`` → NAME is a parameter. An optimizer's state that is numbered and not named is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from partita.adapters.checkpoint.boxes import lacking, whole
from partita.adapters.checkpoint.catalogue import BUFFER, PARAMETER, Catalogue, Entry, Group, Key, Piece
from partita.adapters.checkpoint.fill import Files, fill
from partita.adapters.checkpoint.pickled import read_pickled, with_values
from partita.adapters.torch import checkpoint
from partita.adapters.torch.checkpoint import CALLERS, FACTS
from partita.adapters.torch.dcp import METADATA, Stored, read_metadata
from partita.errors import InputError

FORMAT = "torch distributed checkpoint"


class Meant(NamedTuple):
    """What an entry is: a ``state`` of the parameter ``name``; an ``option`` of a group, by the group's number or the
    parameter's name; or, all None, something else."""

    name: str | None = None
    state: str | None = None
    group: str | None = None
    option: str = ""


def is_dcp(path: Path) -> bool:
    """Whether a folder is one."""
    return (path / METADATA).is_file()


def read_dcp(path: Path) -> Catalogue:
    """What it holds. InputError where a file is missing, truncated or broken."""
    contents = read_metadata(path)
    tensors: dict[Key, Entry] = {}
    scalars: dict[Key, Any] = {}
    options: dict[str, dict[str, Any]] = {}
    rest: dict[str, Any] = {}
    places = {key: _place(key, contents.paths) for key in contents.stored}
    nested = any(place[0] == "model" for place in places.values())
    for key, stored in contents.stored.items():
        if FACTS in contents.stored and key.startswith(checkpoint.BUFFER):
            tensors[key.removeprefix(checkpoint.BUFFER), BUFFER] = entry(path, stored)
            continue
        meant = _meant(key, places[key], nested)
        if meant.group is not None:
            options.setdefault(meant.group, {})[meant.option] = _value(path, stored)
        elif meant.name is None or meant.state is None or (stored.dtype is None and meant.state == PARAMETER):
            rest[key] = _value(path, stored)
        elif meant.state != PARAMETER and (stored.dtype is None or not stored.shape):
            scalars[meant.name, meant.state] = _value(path, stored)
        else:
            tensors[meant.name, meant.state] = entry(path, stored)
    parameters = {name for name, state in tensors if state in (PARAMETER, BUFFER)}
    groups = _groups(options)
    used = [name for name, state in tensors if state != PARAMETER] + [name for group in groups for name in group.names]
    if odd := [name for name in used if name not in parameters and str(name).isdigit()]:
        raise InputError(
            f"{path}: the optimizer's state is of parameters by number ({odd[0]}), and nothing says which these are; "
            "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict names them"
        )
    return Catalogue(path, FORMAT, tensors, scalars, groups, _rest(rest))


def entry(path: Path, stored: Stored) -> Entry:
    """A tensor's pieces; each entry's own header says where its values begin and how they are strided."""
    pieces = []
    for one in stored.entries:
        found = read_pickled(path / one.file, one.offset, one.length)
        assert one.box is not None
        if found.shape != tuple(stop - start for start, stop in one.box):
            raise InputError(f"{path / one.file}: has {list(found.shape)} where {METADATA} says {list(one.box)}")
        pieces.append(Piece(one.box, found))
    return Entry(stored.shape, str(stored.dtype).removeprefix("torch."), tuple(pieces))


def _value(path: Path, stored: Stored) -> Any:
    """An object or a tensor in memory. InputError where none of the files has some of the tensor."""
    if stored.dtype is None:
        (one,) = stored.entries
        return with_values(read_pickled(path / one.file, one.offset, one.length))
    found, box = entry(path, stored), whole(stored.shape)
    if lacking(box, [piece.box for piece in found.pieces]) is not None:
        raise InputError(
            f"{path}: a tensor of {list(stored.shape)} that is neither the model's nor the optimizer's "
            "has elements in none of its files"
        )
    value = torch.empty(stored.shape, dtype=stored.dtype)
    with Files() as files:
        fill(found, box, value, files)
    return value


def _place(key: str, paths: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Where a name stood in the dict that was saved; an optimizer's that was flattened before is taken apart again."""
    *front, last = paths.get(key, (key,))
    for word in ("state", "param_groups"):
        before, found, name = f".{last}".partition(f".{word}.")
        if found and "." in name and (not front or front[-1] != word):
            return (*front, *filter(None, before.split(".")), word, *name.rsplit(".", 1))
    return (*front, last)


def _meant(key: str, place: tuple[str, ...], nested: bool) -> Meant:
    for word in ("state", "param_groups"):
        if word in place[:-2]:
            *_, name, last = place
            return Meant(name=name, state=last) if word == "state" else Meant(group=name, option=last)
    if nested:
        return Meant(name=".".join(place[1:]), state=PARAMETER) if place[0] == "model" and place[1:] else Meant()
    return Meant(name=key, state=PARAMETER)


def _groups(options: Mapping[str, Mapping[str, Any]]) -> tuple[Group, ...]:
    """Groups that are numbered and say which parameters are theirs; or each parameter's options, joined where equal."""
    found: list[tuple[list[str], Mapping[str, Any]]] = []
    for name, own in options.items():
        names = [str(one) for one in own["params"]] if "params" in own else [name]
        rest = {option: value for option, value in own.items() if option != "params"}
        same = None if "params" in own else next((names for names, known in found if known == rest), None)
        if same is None:
            found.append((names, rest))
        else:
            same += names
    return tuple(Group(tuple(names), own) for names, own in found)


def _rest(found: Mapping[str, Any]) -> dict[str, Any]:
    """Partita's own state, in the catalogue's words; what else there is, as it is."""
    rest = {key: value for key, value in found.items() if key not in (FACTS, CALLERS)}
    if FACTS in found:
        facts = found[FACTS]
        rest |= {**facts.get("rest", {}), "steps": facts["steps"], "seed": facts["seed"]}
    client = dict(found.get(CALLERS, {}))
    if "lr_scheduler" in client:
        rest["lr_scheduler"] = client.pop("lr_scheduler")
    return {**rest, "client": client}
