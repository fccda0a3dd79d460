"""Writing safetensors, a few MiB at a time: the dense model, or the parts that a device holds.

The size of each tensor is known beforehand, so its bytes are made in order, each chunk filled box by box from wherever
it lies. What no box has is padding, and zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from partita.adapters.checkpoint.boxes import elements, shape_of, whole
from partita.adapters.checkpoint.catalogue import BUFFER, PARAMETER, Catalogue, Entry, item_bytes
from partita.adapters.checkpoint.fill import Files, fill
from partita.adapters.checkpoint.output import Output
from partita.adapters.torch.boxes import flat_boxes, moved, slices
from partita.errors import InputError
from partita.redistribution.view import Box, intersection

CHUNK_BYTES = 2**23
# A file of a dense model isn't larger, but for a tensor that is.
FILE_BYTES = 4 * 2**30
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A tensor of a file: its shape there, and which boxes of a dense tensor lie at which boxes of it."""

    entry: Entry
    shape: tuple[int, ...]
    boxes: tuple[tuple[Box, Box], ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * item_bytes(self.entry.dtype)


def as_it_is(entry: Entry) -> Written:
    """The dense tensor."""
    return Written(entry, entry.shape, ((whole(entry.shape), whole(entry.shape)),))


def file_bytes(tensors: Mapping[str, Written]) -> int:
    """The size of the file that ``write`` makes."""
    return len(_header(tensors)) + sum(tensor.bytes for tensor in tensors.values())


def write(tensors: Mapping[str, Written], path: Path) -> None:
    """Write a file of tensors by name. OSError where the system refuses."""
    # Unbuffered: a disk that is full says so where it is written to.
    with path.open("wb", buffering=0) as file, Files() as files:
        file.write(_header(tensors))
        for tensor in tensors.values():
            total, item = prod(tensor.shape), item_bytes(tensor.entry.dtype)
            for start in range(0, total, CHUNK_BYTES // item):
                stop = min(total, start + CHUNK_BYTES // item)
                left = memoryview(_chunk(tensor, start, stop, files))
                while len(left):
                    left = left[file.write(left) :]


def _chunk(tensor: Written, start: int, stop: int, files: Files) -> bytearray:
    """The elements ``start`` to ``stop`` of a tensor laid flat, as bytes."""
    buffer = bytearray((stop - start) * item_bytes(tensor.entry.dtype))
    flat = torch.frombuffer(buffer, dtype=getattr(torch, tensor.entry.dtype))
    for place, box in flat_boxes(tensor.shape, start, stop):
        view = flat[place - start : place - start + elements(box)].view(shape_of(box))
        for dense, local in tensor.boxes:
            common = intersection(box, local)
            if common is None:
                continue
            fill(
                tensor.entry,
                moved(common, local, dense),
                view[slices(common, box)],
                files,
            )
    return buffer


def _header(tensors: Mapping[str, Written]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, tensor in tensors.items():
        if tensor.entry.dtype not in NAMES:
            known = ", ".join(NAMES)
            raise InputError(f'"{name}" is {tensor.entry.dtype}, which safetensors can\'t hold; {known} work')
        header[name] = {
            "dtype": NAMES[tensor.entry.dtype], "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.bytes],
        }  # fmt: skip
        place += tensor.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def dense_outputs(catalogue: Catalogue) -> list[Output]:
    """The files of the dense model: one, or several and an index, as HuggingFace writes large ones."""
    tensors = {
        name: as_it_is(entry)
        for (name, state), entry in catalogue.tensors.items()
        if state in (PARAMETER, BUFFER)
    }  # fmt: skip
    parts: list[dict[str, Written]] = [{}]
    for name, tensor in sorted(tensors.items()):
        if parts[-1] and sum(t.bytes for t in parts[-1].values()) + tensor.bytes > FILE_BYTES:
            parts.append({})
        parts[-1][name] = tensor
    if len(parts) == 1:
        return [_output("model.safetensors", parts[0])]
    names = [f"model-{index + 1:05d}-of-{len(parts):05d}.safetensors" for index in range(len(parts))]
    index = {name: file for file, part in zip(names, parts, strict=True) for name in part}
    return [*(_output(n, p) for n, p in zip(names, parts, strict=True)), _index(index)]


def _output(name: str, tensors: Mapping[str, Written]) -> Output:
    return Output(name, lambda path: write(tensors, path), file_bytes(tensors))


def _index(files: Mapping[str, str]) -> Output:
    text = json.dumps({"metadata": {}, "weight_map": dict(sorted(files.items()))}, indent=1) + "\n"
    return Output("model.safetensors.index.json", lambda path: path.write_text(text), len(text.encode()))
