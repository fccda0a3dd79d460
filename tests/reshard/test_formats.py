"""What readers find in files, and what writers make of it: values, numbers, groups, the user's own state."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from partita.adapters.checkpoint import write_safetensors
from partita.adapters.checkpoint.boxes import whole
from partita.adapters.checkpoint.catalogue import Catalogue, Stored
from partita.adapters.checkpoint.fill import Files, fill
from partita.adapters.checkpoint.pickled import PICKLE, _tensor, read_pickled, with_values
from partita.adapters.checkpoint.sources import read_checkpoint
from partita.errors import InputError
from tests.reshard.made import SHAPES, STATES, numbers, zero1


def dense(catalogue: Catalogue, name: str, state: str) -> torch.Tensor:
    entry = catalogue.tensors[name, state]
    found = torch.full(entry.shape, float("nan"))
    with Files() as files:
        fill(entry, whole(entry.shape), found, files)
    return found


@pytest.mark.parametrize("copies", [1, 2, 3, 5])
def test_plain_deepspeed_s_zero(tmp_path: Path, copies: int) -> None:
    catalogue = read_checkpoint(zero1(tmp_path / "saved", copies))
    assert catalogue.format == f"DeepSpeed ZeRO 1 (1 devices a copy, {copies} copies)"
    assert set(catalogue.tensors) == {(name, state) for name in SHAPES for state in ("parameter", *STATES)}
    for name, state in catalogue.tensors:
        # In 32 bits, and not the module's 16.
        assert torch.equal(dense(catalogue, name, state), numbers(name, state))
    assert {key: float(value) for key, value in catalogue.scalars.items()} == {(name, "step"): 5.0 for name in SHAPES}
    (group,) = catalogue.groups
    assert (group.names, group.options) == (tuple(SHAPES), {"lr": 0.25, "betas": (0.9, 0.99)})
    assert catalogue.rest == {
        "steps": 5, "samples": 40, "skipped_steps": 0, "lr_scheduler": {"last_step": 5}, "loss_scale": {},
        "client": {"mine": {"epoch": 3}},
    }  # fmt: skip


class Scaler:
    """As DeepSpeed's, which is an object in its file."""

    def __init__(self) -> None:
        self.cur_scale, self.cur_iter, self.last_overflow_iter = 1024.0, 7, -1


def test_the_loss_scale_is_read_from_an_object_that_is_not_made(tmp_path: Path) -> None:
    (file,) = zero1(tmp_path, 1).glob("*/zero_pp_rank_0_mp_rank_00_optim_states.pt")
    held = torch.load(file)
    held["optimizer_state_dict"]["loss_scaler"] = Scaler()
    torch.save(held, file)
    assert read_checkpoint(tmp_path).rest["loss_scale"] == {
        "cur_scale": 1024.0, "cur_iter": 7, "last_overflow_iter": -1,
    }  # fmt: skip


class Colour(enum.Enum):
    RED = 3


class Counter:
    def __init__(self, count: int):
        self.count = count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and self.count == other.count


class Names(list):
    pass


OBJECTS: dict[str, Any] = {
    "an object": Counter(3), "an enum": Colour.RED, "a list of its own kind": Names(["a", "b"]), "a set": {1, 2},
    "ordered": OrderedDict(a=1, b=(2, 3)), "a default dict": defaultdict(list, x=[1]),
    "numpy": np.arange(6).reshape(2, 3), "a generator": np.random.RandomState(1).get_state(),
    "a size": torch.Size([2, 3]), "a dtype": torch.bfloat16,
    "numbers": [1, 2.5, None, True, "word", b"bytes", 1 + 2j],
}  # fmt: skip
TENSORS = {
    "a view": torch.arange(12.0).reshape(3, 4).t()[1:, ::2], "bf16": torch.arange(5).bfloat16(),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(2.5), "a parameter": torch.nn.Parameter(torch.ones(2)), "bool": torch.tensor([True, False]),
}  # fmt: skip


def test_what_a_client_saved_passes_through_and_nothing_of_it_is_run(tmp_path: Path) -> None:
    torch.save({**OBJECTS, **TENSORS, "a method": "word".upper}, tmp_path / "one")
    read = read_pickled(tmp_path / "one")
    assert type(read["an object"]) is not Counter
    torch.save(with_values(read), tmp_path / "two", pickle_module=PICKLE)
    found = torch.load(tmp_path / "two", weights_only=False)
    for name, value in OBJECTS.items():
        assert type(found[name]) is type(value)
        np.testing.assert_equal(found[name], value)
    assert found["a method"]() == "WORD"
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


class Trap:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("sprung"),)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"trap": Trap()}, "file")
    read_pickled(Path("file"))
    assert not Path("sprung").exists()
    torch.load("file", weights_only=False)
    assert Path("sprung").exists()


def test_dense_files_are_what_safetensors_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file; then several with an index, each tensor written in several chunks."""
    catalogue = read_checkpoint(zero1(tmp_path / "saved", 3))
    (output,) = write_safetensors.dense_outputs(catalogue)
    output.write(tmp_path / output.name)
    assert output.bytes == (tmp_path / output.name).stat().st_size
    monkeypatch.setattr(write_safetensors, "FILE_BYTES", 100)
    monkeypatch.setattr(write_safetensors, "CHUNK_BYTES", 12)
    outputs = write_safetensors.dense_outputs(catalogue)
    (tmp_path / "parts").mkdir()
    for part in outputs:
        part.write(tmp_path / "parts" / part.name)
        assert part.bytes == (tmp_path / "parts" / part.name).stat().st_size
    assert len(outputs) == 4
    index = json.loads((tmp_path / "parts/model.safetensors.index.json").read_text())["weight_map"]
    one = load_file(tmp_path / "model.safetensors")
    for name in SHAPES:
        with safe_open(tmp_path / "parts" / index[name], framework="pt") as file:
            assert torch.equal(file.get_tensor(name), numbers(name, "parameter"))
        assert torch.equal(one[name], numbers(name, "parameter"))
    again = read_checkpoint(tmp_path / "parts")
    assert all(torch.equal(dense(again, name, "parameter"), numbers(name, "parameter")) for name in SHAPES)


def test_safetensors_of_others(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(6).reshape(2, 3).bfloat16(), "y": torch.tensor(3, dtype=torch.int64)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for path in (tmp_path, tmp_path / "model.safetensors"):
        catalogue = read_checkpoint(path)
        assert {name: (entry.shape, entry.dtype) for name, entry in catalogue.parameters.items()} == {
            "x": ((2, 3), "bfloat16"), "y": ((), "int64"),
        }  # fmt: skip
        assert torch.equal(dense(catalogue, "x", "parameter"), tensors["x"].float())


def central(data: bytes, place: int, value: int) -> bytes:
    """A zip file with two bytes of every record's entry in its directory replaced."""
    found = bytearray(data)
    at = found.find(b"PK\1\2")
    while at >= 0:
        found[at + place : at + place + 2] = value.to_bytes(2, "little")
        at = found.find(b"PK\1\2", at + 4)
    return bytes(found)


BROKEN_PICKLES = {
    "a zip of a later version": lambda data: central(data, 6, 99),
    "an unknown way of compressing": lambda data: central(data, 10, 77),
    "encrypted": lambda data: central(data, 8, 1),
    "cut off": lambda data: data[:-1],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("name", BROKEN_PICKLES)
def test_broken_files_of_torch_save(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.pt"
    torch.save({"x": torch.ones(4)}, path)
    path.write_bytes(BROKEN_PICKLES[name](path.read_bytes()))
    with pytest.raises(InputError, match=rf"{path}: can't be read: it is truncated or broken, or torch.save didn't"):
        read_pickled(path)


def test_a_tensor_beyond_its_storage_is_not_read() -> None:
    """What lies there is another tensor's."""
    storage = Stored(Path("x.pt"), 64, "float32", (4,), (1,))
    assert _tensor(storage, 1, (3,), (1,)).start_bytes == 68
    for offset, size, stride in ((2, (3,), (1,)), (0, (2, 2), (3, 1)), (-1, (1,), (1,)), (3, (2,), (-1,))):
        with pytest.raises(AssertionError):
            _tensor(storage, offset, size, stride)


BROKEN = {
    "cut off in its values": lambda data: data[:-1],
    "cut off in its header": lambda data: data[:20],
    "empty": lambda data: b"",
    "something else": lambda data: b"\x10" * 100,
    "a header of another size": lambda data: (2**40).to_bytes(8, "little") + data[8:],
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_safetensors(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(4)}, path)
    path.write_bytes(BROKEN[name](path.read_bytes()))
    with pytest.raises(InputError, match=rf"{path}: can't be read, it is truncated or broken, or not safetensors"):
        read_checkpoint(path)
