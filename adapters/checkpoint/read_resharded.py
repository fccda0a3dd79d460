"""Reading what ``write_deepspeed`` wrote, so that it can be resharded once more without an engine between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partita.adapters.checkpoint.boxes import whole
from partita.adapters.checkpoint.catalogue import BUFFER, Catalogue, Entry, Group, Key, Piece
from partita.adapters.checkpoint.local import whole_pieces
from partita.adapters.checkpoint.pickled import read_pickled, with_values
from partita.adapters.checkpoint.read_safetensors import stored_tensors
from partita.adapters.checkpoint.target import Part
from partita.adapters.torch.resharded import LAYOUT_FILE, REST_FILE, read_layout, tensors_file
from partita.errors import InputError
from partita.files import read_text
from partita.spacetime.program import Shard


def resharded_folder(path: Path) -> Path | None:
    """The folder of the checkpoint at a path: itself, or what its file ``latest`` names; None for other things."""
    if (path / LAYOUT_FILE).is_file():
        return path
    if (path / "latest").is_file():
        folder = path / read_text(path / "latest").strip()
        return folder if (folder / LAYOUT_FILE).is_file() else None
    return None


def read_resharded(folder: Path) -> Catalogue:
    """What the folder holds. InputError where a file lacks, is truncated or broken."""
    layout = read_layout(folder)
    tensors: dict[Key, tuple[tuple[int, ...], str, list[Piece]]] = {}
    padded = {}
    for rank, said in enumerate(layout["parameters"]):
        path = folder / tensors_file(rank)
        if not path.is_file():
            raise InputError(f"{path}: no such file; {layout['ranks']} ranks have one each")
        stored = stored_tensors(path)
        for key, found in stored.items():
            state, _, name = key.partition(":")
            if state == BUFFER:
                tensors[name, state] = found.shape, found.dtype, [Piece(whole(found.shape), found)]
                continue
            item = said[name]
            shard = None if item["shard"] is None else Shard(**item["shard"])
            part = Part(name, tuple(item["shape"]), shard, item["piece"], item["copy"])
            if shard is not None and shard.padded != shard.size:
                padded[name] = shard.dim, shard.padded
            if not part.copy:
                _, _, pieces = tensors.setdefault((name, state), (part.shape, found.dtype, []))
                pieces.extend(whole_pieces(part, found))
    if not (folder / REST_FILE).is_file():
        raise InputError(f"{folder / REST_FILE}: no such file")
    rest: dict[str, Any] = with_values(read_pickled(folder / REST_FILE))
    groups = tuple(Group(tuple(group["names"]), group["options"]) for group in rest.pop("groups"))
    scalars = rest.pop("scalars")
    entries = {key: Entry(shape, dtype, tuple(pieces)) for key, (shape, dtype, pieces) in tensors.items()}
    return Catalogue(
        folder, f"DeepSpeed, resharded ({layout['ranks']} devices a copy)", entries, scalars, groups, rest, padded
    )
