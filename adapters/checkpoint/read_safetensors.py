"""Reading the dense model from safetensors: one file, or several with an index, as HuggingFace writes them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from partita.adapters.checkpoint.boxes import whole
from partita.adapters.checkpoint.catalogue import (
    PARAMETER,
    Catalogue,
    Entry,
    Key,
    Piece,
    Stored,
    item_bytes,
    row_major,
)  # fmt: skip
from partita.adapters.checkpoint.write_safetensors import NAMES
from partita.errors import InputError
from partita.files import read_json

DTYPES = {name: dtype for dtype, name in NAMES.items()}
INDEX = "model.safetensors.index.json"
# A header beyond this isn't one.
HEADER_BYTES = 10**8


def safetensors_files(path: Path) -> list[Path]:
    """The files of a dense model at a path: itself, what an index names, or the folder's one; none for other things.

    InputError where a file lacks that an index names.
    """
    if path.is_file():
        return [path] if path.suffix == ".safetensors" else []
    if not (path / INDEX).is_file():
        return [path / "model.safetensors"] if (path / "model.safetensors").is_file() else []
    index = read_json(path / INDEX)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise InputError(f"{path / INDEX}: has no weight_map, which names the file of each tensor")
    files = [path / name for name in sorted(set(map(str, names.values())))]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file, but {path / INDEX} names it")
    return files


def read_safetensors(path: Path, files: list[Path]) -> Catalogue:
    """What the files hold. InputError where one is truncated or broken."""
    tensors: dict[Key, Entry] = {}
    for file in files:
        for name, stored in stored_tensors(file).items():
            if (name, PARAMETER) in tensors:
                raise InputError(f'{file}: has "{name}", which another file has too')
            piece = Piece(whole(stored.shape), stored)
            tensors[name, PARAMETER] = Entry(stored.shape, stored.dtype, (piece,))
    return Catalogue(path, "safetensors", tensors)


def stored_tensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name. InputError where it can't be read, is truncated or broken."""
    try:
        return _stored_tensors(path, path.stat().st_size)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None


def _stored_tensors(path: Path, size: int) -> dict[str, Stored]:
    broken = InputError(f"{path}: can't be read, it is truncated or broken, or not safetensors ({size:,} bytes)")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_BYTES, size - 8):
            raise broken
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            found = {}
            for name, item in header.items():
                start, stop = item["data_offsets"]
                shape = tuple(map(int, item["shape"]))
                if item["dtype"] not in DTYPES:
                    raise InputError(f'{path}: "{name}" has dtype {item["dtype"]}; known: {", ".join(DTYPES)}')
                dtype = DTYPES[item["dtype"]]
                inside = 0 <= start <= stop <= size - 8 - length
                if not inside or min(shape, default=0) < 0 or stop - start != prod(shape) * item_bytes(dtype):
                    raise broken
                found[name] = Stored(path, 8 + length + start, dtype, shape, row_major(shape))
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            raise broken from None
    return found
