"""What ``torch.save`` wrote, read without its values and without running any code of the file.

A tensor becomes a ``Stored``: where its values are in the file. An object of a class that isn't known becomes a
``StandIn``, which is written again as what it was: so a client's own state passes through, and nothing that a
checkpoint brings along is imported or called.
"""

from __future__ import annotations

import collections
import copyreg
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from partita.adapters.checkpoint.catalogue import Stored, item_bytes, row_major
from partita.adapters.checkpoint.fill import values
from partita.adapters.torch.dcp import HEADER_BYTES, header_length
from partita.errors import InputError

KNOWN = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "slice"): slice,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "int"): int,
    ("builtins", "float"): float,
}
# Storages of the typed kind, by the dtype of their elements.
DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "uint8",
}  # fmt: skip


class StandIn:
    """An object that a file describes by a class that isn't imported: what makes it, and its state."""

    def __new__(cls, *args: Any, **options: Any) -> StandIn:
        found = object.__new__(cls)
        found.__dict__["made"] = (args, False, None, [], {})
        return found

    def __init__(self, *args: Any) -> None:
        # Only a call comes here: what an instruction to make an instance alone has made stays as it is.
        self._note(1, True)

    def _note(self, index: int, value: Any) -> None:
        made = list(self.__dict__["made"])
        made[index] = value
        self.__dict__["made"] = tuple(made)

    def __call__(self, *args: Any) -> StandIn:
        # What it stands for gives something that is called: a method.
        found = StandIn.__new__(StandIn, *args)
        found._note(1, True)
        found.__dict__["maker"] = self
        return found

    @property
    def args(self) -> tuple[Any, ...]:
        """What it was made from."""
        found: tuple[Any, ...] = self.__dict__["made"][0]
        return found

    @property
    def state(self) -> Any:
        """Its attributes, mostly as a dict."""
        return self.__dict__["made"][2]

    def __setstate__(self, state: Any) -> None:
        self._note(2, state)

    def append(self, item: Any) -> None:
        self.__dict__["made"][3].append(item)

    def extend(self, items: Any) -> None:
        self.__dict__["made"][3].extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["made"][4][key] = value

    def __reduce__(self) -> Any:
        args, called, state, items, pairs = self.__dict__["made"]
        cls = self.__dict__.get("maker", type(self))
        maker = (cls, args) if called else (copyreg.__newobj__, (cls, *args))  # type: ignore[attr-defined]
        return (*maker, state, iter(items) if items else None, iter(pairs.items()) if pairs else None)


class _Pickler(pickle._Pickler):
    """Writes a stand-in's class by the name that it stands for, without looking for it."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if isinstance(obj, type) and issubclass(obj, StandIn):
            self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__qualname__}\n".encode())  # type: ignore[attr-defined]
            self.memoize(obj)  # type: ignore[attr-defined]
        else:
            super().save_global(obj, name)  # type: ignore[misc]


# As torch.save takes it.
PICKLE = SimpleNamespace(__name__="pickle", Pickler=_Pickler)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, storages: Any):
        super().__init__(file, encoding="utf-8")
        self.storages = storages
        self.classes: dict[tuple[str, str], type] = {}

    def find_class(self, module: str, name: str) -> Any:
        # The older protocols call it so.
        module = "builtins" if module == "__builtin__" else module
        if module in ("torch", "torch.storage") and name in DTYPES:
            return DTYPES[name]
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return _tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return _parameter
        if module == "torch._tensor" and name == "_rebuild_from_type_v2":
            return _subclass
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        made = {"__module__": module, "__qualname__": name}
        return self.classes.setdefault((module, name), type(name.rpartition(".")[2], (StandIn,), made))

    def persistent_load(self, pid: Any) -> Stored:
        kind, dtype, key, _, elements = pid
        assert (kind, type(dtype)) == ("storage", str)
        found: Stored = self.storages(str(key), dtype, int(elements))
        return found


def _tensor(storage: Stored, offset: int, size: Any, stride: Any, *rest: Any) -> Stored:
    # A storage without a type of its own says the tensor's dtype (v3).
    dtypes = [str(item).removeprefix("torch.") for item in rest if isinstance(item, torch.dtype)]
    dtype = dtypes[0] if dtypes else storage.dtype
    skipped_bytes = offset * item_bytes(dtype)
    found = Stored(storage.path, storage.start_bytes + skipped_bytes, dtype, tuple(size), tuple(stride))
    # Beyond its storage is another tensor's.
    assert min((offset, *size, *stride)) >= 0
    assert skipped_bytes + found.span_bytes <= storage.span_bytes
    return found


def _parameter(data: Stored, *_: Any) -> Stored:
    return data


def _subclass(made: Any, kind: Any, args: Any, state: Any) -> Any:
    # A tensor with attributes of somebody's own, which aren't its values.
    return made(*args)


def read_pickled(path: Path, start_bytes: int = 0, length_bytes: int | None = None) -> Any:
    """The object that ``torch.save`` wrote to a file, or to a part of one; tensors in it are ``Stored``.

    InputError where it is truncated, broken, or isn't of that form.
    """
    size = 0
    try:
        size = path.stat().st_size
        length_bytes = size - start_bytes if length_bytes is None else length_bytes
        with path.open("rb") as file, zipfile.ZipFile(_Part(file, start_bytes, length_bytes)) as archive:  # type: ignore
            (name,) = [entry for entry in archive.namelist() if entry.endswith("/data.pkl")]
            folder = name.removesuffix("data.pkl")

            def storage(key: str, dtype: str, elements: int) -> Stored:
                entry = archive.getinfo(f"{folder}data/{key}")
                assert entry.compress_type == zipfile.ZIP_STORED
                file.seek(start_bytes + entry.header_offset)
                first = start_bytes + entry.header_offset + header_length(file.read(HEADER_BYTES))
                assert elements * item_bytes(dtype) <= entry.file_size
                return Stored(path, first, dtype, (elements,), row_major((elements,)))

            with archive.open(name) as pickled:
                return _Unpickler(pickled, storage).load()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # a zip or a pickle that is broken raises anything
        assert length_bytes is not None
        part = f", bytes {start_bytes} to {start_bytes + length_bytes}" if length_bytes < size else ""
        raise InputError(
            f"{path}: can't be read{part}: it is truncated or broken, or torch.save didn't write it ({size:,} bytes)"
        ) from error


class _Part:
    """A part of an open file as a file of its own."""

    def __init__(self, file: Any, start: int, length: int):
        self.file, self.start, self.length, self.place = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = max(0, (0, self.place, self.length)[whence] + offset)
        return self.place

    def read(self, count: int = -1) -> bytes:
        left = max(0, self.length - self.place)
        count = left if count is None or count < 0 else min(count, left)
        self.file.seek(self.start + self.place)
        found: bytes = self.file.read(count)
        self.place += len(found)
        return found


def with_values(found: Any) -> Any:
    """The same object with its tensors in memory: for the small state of a checkpoint."""
    if isinstance(found, Stored):
        return values(found)
    if isinstance(found, dict):
        for key in found:
            found[key] = with_values(found[key])
        return found
    if isinstance(found, list):
        found[:] = [with_values(item) for item in found]
        return found
    if type(found) is tuple:
        return tuple(with_values(item) for item in found)
    if isinstance(found, StandIn):
        args, called, state, items, pairs = found.__dict__["made"]
        found.__dict__["made"] = with_values(args), called, with_values(state), with_values(items), with_values(pairs)
    return found
