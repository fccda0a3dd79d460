"""torch's distributed checkpoint on disk, an entry at a time: what ``torch.distributed.checkpoint`` writes and reads.

A folder: files of entries one after another, each as ``torch.save`` writes it, and ``.metadata``, a pickle that says
for each tensor its dense shape and which box of it stands where. Reading maps a file into memory, so that a part of a
tensor costs no more than itself; writing needs one entry at a time, and no process group. What the names mean is the
business of those who call.
"""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from partita.errors import InputError
from partita.redistribution.view import Box

METADATA = ".metadata"
# Entries begin at multiples of it: mapped tensors are then aligned for every dtype.
ALIGNMENT_BYTES = 64
# The fixed part of what stands before a record of a zip file: the record's name and padding follow, whose lengths it
# says.
HEADER_BYTES = 30


@dataclass(frozen=True)
class Entry:
    """Where one box of a tensor stands in a file; of another object ``box`` is None."""

    box: Box | None
    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: dense shape, dtype, and its boxes; or an object, whose ``dtype`` is None."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    entries: tuple[Entry, ...] = field(repr=False)


class EntryWriter:
    """One file of entries. ``found`` is what ``write_metadata`` needs to know of them."""

    def __init__(self, file: BinaryIO, name: str):
        self.file, self.name = file, name
        self.found: list[tuple[str, Stored]] = []

    def tensor(self, name: str, shape: Iterable[int], box: Box, value: Tensor) -> None:
        """Append the values of a box of a tensor whose dense shape is given."""
        exact = value.detach().cpu().contiguous()
        if exact.untyped_storage().nbytes() != exact.nbytes:
            # torch.save writes a tensor's whole storage.
            exact = exact.clone()
        entry = self._append(box, exact)
        self.found.append((name, Stored(tuple(shape), exact.dtype, (entry,))))

    def object(self, name: str, value: Any) -> None:
        """Append an object of plain values and tensors."""
        self.found.append((name, Stored((), None, (self._append(None, value),))))

    def _append(self, box: Box | None, value: Any) -> Entry:
        self.file.write(b"\0" * (-self.file.tell() % ALIGNMENT_BYTES))
        start = self.file.tell()
        torch.save(value, self.file)
        return Entry(box, self.name, start, self.file.tell() - start)


def merged(found: Iterable[tuple[str, Stored]]) -> dict[str, Stored]:
    """Tensors by name, from the entries of all files. InputError where files differ about a tensor's shape or dtype."""
    result: dict[str, Stored] = {}
    for name, stored in found:
        before = result.get(name)
        if before is not None:
            if (before.shape, before.dtype) != (stored.shape, stored.dtype):
                raise InputError(
                    f'"{name}" is {before.dtype} {list(before.shape)} in {before.entries[0].file} and '
                    f"{stored.dtype} {list(stored.shape)} in {stored.entries[0].file}"
                )
            stored = Stored(before.shape, before.dtype, before.entries + stored.entries)
        result[name] = stored
    return result


def write_metadata(path: str | Path, found: Mapping[str, Stored], paths: Mapping[str, tuple]) -> None:
    """Write ``.metadata``, by which all the rest is found: so it comes last. ``paths``: where each name stands in the
    nested dict that torch's own converter makes of the checkpoint."""
    known: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for name, stored in sorted(found.items()):
        if stored.dtype is None:
            known[name] = BytesStorageMetadata()
        else:
            chunks = [
                ChunkStorageMetadata(torch.Size(a for a, _ in entry.box), torch.Size(b - a for a, b in entry.box))
                for entry in stored.entries
                if entry.box is not None
            ]
            known[name] = TensorStorageMetadata(TensorProperties(stored.dtype), torch.Size(stored.shape), chunks)
        for index, entry in enumerate(stored.entries):
            offset = None if entry.box is None else [start for start, _ in entry.box]
            key = MetadataIndex(name, offset, None if offset is None else index)
            places[key] = _StorageInfo(entry.file, entry.offset, entry.length)
    metadata = Metadata(known, dict(paths), places, StorageMeta(), CURRENT_DCP_VERSION)
    with Path(path).open("wb") as file:
        pickle.dump(metadata, file)


class _Unpickler(pickle.Unpickler):
    """Only what metadata consists of: a pickle may otherwise run anything."""

    def find_class(self, module: str, name: str) -> Any:
        known = module.startswith("torch.distributed.checkpoint.") or (module, name) in SAFE
        if not known:
            raise pickle.UnpicklingError(f"it wants {module}.{name}")
        return super().find_class(module, name)


SAFE = {
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("torch", "device"), ("collections", "OrderedDict"),
    ("builtins", "set"), ("builtins", "slice"), ("pathlib", "PosixPath"),
    *(("torch", str(dtype).removeprefix("torch.")) for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)),
}  # fmt: skip


class Contents(NamedTuple):
    """What a checkpoint holds by name; and where each name stood in the dict that was saved, as far as it says."""

    stored: dict[str, Stored]
    paths: dict[str, tuple[str, ...]]


def read_metadata(folder: str | Path) -> Contents:
    """What a checkpoint holds. InputError where it can't be read, or a file is missing or ends too early."""
    path = Path(folder, METADATA)
    try:
        with path.open("rb") as file:
            metadata = _Unpickler(file).load()
        places = {(key.fqn, key.offset): place for key, place in metadata.storage_data.items()}
        found = {name: _stored(name, known, places) for name, known in metadata.state_dict_metadata.items()}
        paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        paths = {name: tuple(map(str, path)) for name, path in paths.items() if isinstance(path, (tuple, list))}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; without it nothing says what the checkpoint holds") from None
    except Exception as error:  # a pickle that is broken raises anything
        raise InputError(f"{path}: can't be read, it is truncated or broken ({error})") from None
    ends: dict[str, int] = {}
    for stored in found.values():
        for entry in stored.entries:
            ends[entry.file] = max(ends.get(entry.file, 0), entry.offset + entry.length)
    for name, end in sorted(ends.items()):
        _require_bytes(Path(folder, name), end)
    return Contents(found, paths)


def _stored(name: str, known: Any, places: Mapping[tuple[str, Any], Any]) -> Stored:
    if isinstance(known, BytesStorageMetadata):
        return Stored((), None, (_entry(None, places[name, None]),))
    boxes = [
        tuple((int(a), int(a) + int(n)) for a, n in zip(chunk.offsets, chunk.sizes, strict=True))
        for chunk in known.chunks
    ]
    entries = [_entry(box, places[name, torch.Size(start for start, _ in box)]) for box in boxes]
    return Stored(tuple(map(int, known.size)), known.properties.dtype, tuple(entries))


def _entry(box: Box | None, place: Any) -> Entry:
    if getattr(place, "transform_descriptors", None):
        raise ValueError(f"its entries are transformed: {', '.join(place.transform_descriptors)}")
    return Entry(box, place.relative_path, place.offset, place.length)


def _require_bytes(path: Path, end: int) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, and the checkpoint's {METADATA} names it") from None
    if size < end:
        raise InputError(f"{path}: is truncated: it has {size} bytes of {end}")


@dataclass(frozen=True)
class Placed:
    """A tensor in a file: a strided array (as torch counts, in elements) that begins at byte ``start_bytes``."""

    start_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class EntryReader:
    """Reads entries of a checkpoint's files; each file is mapped into memory once."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.maps: dict[str, mmap.mmap] = {}

    def place(self, entry: Entry) -> Placed:
        """Where the values of a tensor's box stand. InputError where the entry is broken or is another box."""
        archive = _Window(self._archive(entry))
        try:
            # On this device torch reads what the tensor is, and none of its values.
            form = torch.load(archive, map_location="meta", weights_only=True)
            begin = _only_storage(archive) if form.numel() else 0
        except Exception as error:  # torch and zipfile raise anything
            raise self._broken(entry, error) from None
        assert entry.box is not None
        if tuple(form.shape) != tuple(stop - start for start, stop in entry.box):
            raise self._broken(entry, f"it has shape {list(form.shape)}, and {METADATA} says {list(entry.box)}")
        start = entry.offset + begin + form.storage_offset() * form.element_size()
        return Placed(start, form.dtype, tuple(form.shape), form.stride())

    def tensor(self, entry: Entry) -> Tensor:
        """A tensor over the file itself: what is read of it is read from there. InputError where it is broken."""
        placed = self.place(entry)
        if not prod(placed.shape):
            return torch.empty(placed.shape, dtype=placed.dtype)
        reach = 1 + sum((size - 1) * stride for size, stride in zip(placed.shape, placed.strides, strict=True))
        flat = torch.frombuffer(self._map(entry.file), dtype=placed.dtype, count=reach, offset=placed.start_bytes)
        return flat.as_strided(placed.shape, placed.strides)

    def object(self, entry: Entry) -> Any:
        """An object of plain values and tensors. InputError where it is broken, or anything else."""
        try:
            return torch.load(io.BytesIO(self._archive(entry)), map_location="cpu", weights_only=True)
        except Exception as error:
            raise self._broken(entry, error) from None

    def _archive(self, entry: Entry) -> memoryview:
        return memoryview(self._map(entry.file))[entry.offset : entry.offset + entry.length]

    def _map(self, name: str) -> mmap.mmap:
        if name not in self.maps:
            try:
                with Path(self.folder, name).open("rb") as file:
                    # A private copy of what is written to: nothing is, but torch warns of memory that is read-only.
                    self.maps[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise InputError(f"{self.folder / name}: can't be read: {error}") from None
        return self.maps[name]

    def _broken(self, entry: Entry, why: object) -> InputError:
        reason = str(why).split("\n")[0]
        return InputError(f"{self.folder / entry.file}: the entry at byte {entry.offset} can't be read: {reason}")


class _Window(io.RawIOBase):
    """Memory as a file, nothing of which is copied before it is read."""

    def __init__(self, memory: memoryview):
        self.memory, self.at = memory, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.memory[self.at : self.at + len(buffer)]
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, len(self.memory))[whence]
        return self.at

    def tell(self) -> int:
        return self.at


def _only_storage(archive: _Window) -> int:
    """Where in a file of ``torch.save`` with one tensor the tensor's bytes begin."""
    (record,) = (info for info in zipfile.ZipFile(archive).infolist() if "/data/" in info.filename)
    if record.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed")
    header = archive.memory[record.header_offset : record.header_offset + HEADER_BYTES]
    return record.header_offset + header_length(header)


def header_length(header: bytes | memoryview) -> int:
    """How many bytes stand before what a record of a zip file has, by the fixed part of them."""
    name, padding = struct.unpack_from("<HH", header, HEADER_BYTES - 4)
    return HEADER_BYTES + int(name) + int(padding)
