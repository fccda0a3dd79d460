"""Writing what Partita's own engines load, for targets partita and megatron: torch's distributed checkpoint.

One file for each device of a copy, with the boxes that it holds and no other before it, in entries of a few MiB; and
one of what there is once. Each file ends in a list of what it has: a run that goes on where another stopped reads there
what needn't be written again. torch's reader goes by ``.metadata``, written last, and never comes to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from partita.adapters.checkpoint.boxes import elements, shape_of, whole
from partita.adapters.checkpoint.catalogue import PARAMETER, Catalogue, Entry, item_bytes
from partita.adapters.checkpoint.fill import Files, fill
from partita.adapters.checkpoint.output import Output
from partita.adapters.checkpoint.target import Target, entry_of
from partita.adapters.torch import checkpoint, dcp
from partita.errors import InputError
from partita.redistribution.view import Box

COMMON_FILE = "__common.distcp"
# No entry is larger, since one is in memory while it is written.
ENTRY_BYTES = 2**24
# What a checkpoint's own facts have no word for.
OWN_WORDS = {"steps", "seed", "client", "lr_scheduler"}

# A tensor of a file: its name in the checkpoint, the dense tensor, and which box of it.
Part = tuple[str, Entry, Box]


def dcp_outputs(catalogue: Catalogue, target: Target) -> list[Output]:
    """The files of the checkpoint, ``.metadata`` last."""
    outputs: list[Output] = []
    seen: set[tuple[str, Box]] = set()
    for rank, parts in enumerate(target.ranks):
        mine: list[Part] = []
        for part in parts.values():
            if part.copy:
                continue
            for state in (PARAMETER, *catalogue.states):
                entry = entry_of(catalogue, target.graph, part.name, state)
                key = _key(part.name, state)
                for box, _ in part.boxes if entry is not None else ():
                    if (key, box) not in seen and elements(box):
                        seen.add((key, box))
                        assert entry is not None
                        mine.append((key, entry, box))
        if rank == 0:
            mine += [(checkpoint.BUFFER + name, entry, whole(entry.shape)) for name, entry in catalogue.buffers.items()]
        name = f"__{rank}_0.distcp"
        outputs.append(Output(name, lambda path, name=name, mine=mine: write_file(path, name, mine)))
    names = [output.name for output in outputs]
    common = _common(catalogue, target)
    return [
        *outputs,
        Output(COMMON_FILE, lambda path: write_file(path, COMMON_FILE, [], common)),
        Output(dcp.METADATA, lambda path: write_index(path, [*names, COMMON_FILE])),
    ]


def _key(name: str, state: str) -> str:
    return checkpoint.PARAMETER + name if state == PARAMETER else f"{checkpoint.STATE}{name}.{state}"


def _common(catalogue: Catalogue, target: Target) -> dict[str, Any]:
    """What there is once, by its name in the checkpoint: tensors of one number, and objects."""
    canonical = {**catalogue.aliases, **target.graph.aliases}
    rest = catalogue.rest
    found: dict[str, Any] = {}
    for (name, state), value in catalogue.scalars.items():
        # torch's optimizers count in a tensor; others' in a number.
        number = state == checkpoint.STEP and not isinstance(value, torch.Tensor)
        found[_key(canonical.get(name, name), state)] = torch.tensor(float(value)) if number else value
    found |= checkpoint.group_options(
        [{**group.options, "params": [canonical.get(name, name) for name in group.names]} for group in catalogue.groups]
    )
    found[checkpoint.FACTS] = {
        "version": checkpoint.VERSION, "steps": rest.get("steps", 0), "seed": rest.get("seed"),
        "rest": {key: value for key, value in rest.items() if key not in OWN_WORDS},
    }  # fmt: skip
    schedule = rest.get("lr_scheduler")
    callers = {**rest.get("client", {}), **({} if schedule is None else {"lr_scheduler": schedule})}
    found[checkpoint.CALLERS] = callers
    for key, value in found.items():
        try:
            checkpoint.plain(value)
        except InputError as error:
            raise InputError(f'{catalogue.path}: its "{key}" can\'t go into a checkpoint of torch: {error}') from None
    return found


def write_file(path: Path, name: str, parts: list[Part], common: Mapping[str, Any] | None = None) -> None:
    """Write a file of entries, of boxes of tensors and of ``common``, what there is once; its list at the end."""
    with path.open("wb") as file, Files() as files:
        writer = dcp.EntryWriter(file, name)
        for key, entry, box in parts:
            for small in _small(entry, box):
                value = torch.empty(shape_of(small), dtype=getattr(torch, entry.dtype))
                fill(entry, small, value, files)
                writer.tensor(key, entry.shape, small, value)
                # Else it would still be there when the next one is made.
                del value
        for key, value in (common or {}).items():
            if isinstance(value, torch.Tensor):
                writer.tensor(key, value.shape, tuple((0, size) for size in value.shape), value)
            else:
                writer.object(key, value)
        found = [
            [key, stored.shape, None if stored.dtype is None else str(stored.dtype).removeprefix("torch."),
             entry.box, entry.offset, entry.length]
            for key, stored in writer.found
            for entry in stored.entries
        ]  # fmt: skip
        index = json.dumps(found).encode()
        file.write(index + len(index).to_bytes(8, "little"))


def _small(entry: Entry, box: Box) -> Iterator[Box]:
    """The box, or it in pieces that are no larger than an entry may be."""
    if elements(box) * item_bytes(entry.dtype) <= ENTRY_BYTES:
        yield box
        return
    dim = next(dim for dim, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[dim]
    middle = (start + stop) // 2
    for half in ((start, middle), (middle, stop)):
        yield from _small(entry, (*box[:dim], half, *box[dim + 1 :]))


def write_index(path: Path, names: Sequence[str], places: Mapping[str, tuple] | None = None) -> None:
    """Write ``.metadata`` beside files that ``write_file`` wrote; ``places`` as of ``dcp.write_metadata``."""
    stored = dcp.merged(item for name in names for item in _index(path.parent / name))
    own = {key: checkpoint.path_of(key) for key in stored} if places is None else places
    dcp.write_metadata(path, stored, own)


def _index(path: Path) -> list[tuple[str, dcp.Stored]]:
    with path.open("rb") as file:
        file.seek(-8, 2)
        length = int.from_bytes(file.read(8), "little")
        file.seek(-8 - length, 2)
        found = json.loads(file.read(length))
    result = []
    for key, shape, dtype, box, offset, size in found:
        entry = dcp.Entry(None if box is None else tuple(map(tuple, box)), path.name, offset, size)
        result.append((key, dcp.Stored(tuple(shape), None if dtype is None else getattr(torch, dtype), (entry,))))
    return result
