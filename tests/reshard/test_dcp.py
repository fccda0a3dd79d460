"""torch's distributed checkpoints: what torch saved goes through plans and comes back to torch bit for bit."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from partita.adapters.checkpoint.catalogue import PARAMETER, require_whole
from partita.adapters.checkpoint.fill import Files, fill
from partita.adapters.checkpoint.read_dcp import read_dcp
from partita.adapters.torch.boxes import flat_boxes, parts_of
from partita.adapters.torch.dcp import METADATA, EntryWriter, merged, write_metadata
from partita.cli.main import main
from partita.errors import InputError
from partita.plugins.capture_huggingface import capture_config
from partita.spacetime.program import Shard
from tests.reshard.distributed import (
    CONFIGS,
    OPTIONS,
    STATES,
    for_layout,
    graph_of,
    labelled,
    load,
    nested,
    save,
    write,
)
from tests.runtime.programs import Layout


def filled(catalogue: Any, name: str, state: str) -> Tensor:
    entry = catalogue.tensors[name, state]
    found = torch.full(entry.shape, math.nan, dtype=getattr(torch, entry.dtype))
    with Files() as files:
        fill(entry, tuple((0, size) for size in entry.shape), found, files)
    return found


LAYOUTS = {
    "tp4": Layout(tp=4), "pp2 tp2": Layout(pp=2, tp=2), "pp4": Layout(pp=4), "tp2 dp2 zero3": Layout(tp=2, dp=2, zero=3)
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("llama", ("tp4", "pp2 tp2")),
        pytest.param("gpt2", ("tp4", "pp2 tp2"), marks=pytest.mark.slow),
        pytest.param("gpt2", ("pp4", "tp2 dp2 zero3", "tp4"), marks=pytest.mark.slow),
        pytest.param("llama", ("pp4", "tp2 dp2 zero3", "tp4"), marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else " to ".join(value),
)
def test_what_torch_saved_comes_back_to_torch(tmp_path: Path, model: str, way: tuple[str, ...]) -> None:
    tensors = labelled(graph_of(model))
    save(nested(tensors), tmp_path / "first")
    folder = tmp_path / "first"
    for index, layout in enumerate(way):
        catalogue = read_dcp(folder)
        require_whole(catalogue)
        assert set(catalogue.states) == set(STATES)
        folder = write(catalogue, for_layout(graph_of(model), LAYOUTS[layout]), tmp_path / str(index))
    found = copy.deepcopy(nested(tensors))
    for value in [*found["model"].values(), *(t for s in found["optimizer"]["state"].values() for t in s.values())]:
        value.fill_(math.nan)
    found["optimizer"]["param_groups"] = [{**dict.fromkeys(OPTIONS), "params": None}]
    load(found, folder)
    wanted = nested(tensors)
    for name, tensor in wanted["model"].items():
        assert torch.equal(found["model"][name], tensor), name
        for state, value in wanted["optimizer"]["state"][name].items():
            assert torch.equal(found["optimizer"]["state"][name][state], value), (name, state)
    (group,) = found["optimizer"]["param_groups"]
    assert sorted(group.pop("params")) == sorted(tensors)
    assert group == OPTIONS


@pytest.mark.parametrize(
    ("saved", "names"),
    [
        ({"model": {"a.w": torch.ones(2)}}, {("a.w", PARAMETER)}),
        ({"a.w": torch.ones(2)}, {("a.w", PARAMETER)}),
        # A HuggingFace base model's own names begin so.
        ({"model.a.w": torch.ones(2)}, {("model.a.w", PARAMETER)}),
        (
            {"model": {"a.w": torch.ones(2)}, "optim": {"state": {"a.w": {"exp_avg": torch.ones(2)}}}},
            {("a.w", PARAMETER), ("a.w", "exp_avg")},
        ),
        (
            {"model": {"a.w": torch.ones(2)}, "optim": {"state.a.w.exp_avg": torch.ones(2)}},
            {("a.w", PARAMETER), ("a.w", "exp_avg")},
        ),
    ],
    ids=["model", "names alone", "names that begin with model", "nested", "flattened"],
)
def test_names_by_where_they_stood(tmp_path: Path, saved: Any, names: set[tuple[str, str]]) -> None:
    save(saved, tmp_path)
    assert set(read_dcp(tmp_path).tensors) == names


def test_an_optimizer_by_number_is_refused(tmp_path: Path) -> None:
    save({"model": {"w": torch.ones(2)}, "optim": {"state": {0: {"exp_avg": torch.ones(2)}}}}, tmp_path)
    with pytest.raises(InputError, match=r"of parameters by number \(0\)"):
        read_dcp(tmp_path)


def test_strided_half_and_empty_tensors(tmp_path: Path) -> None:
    tensors = {
        "t": torch.arange(12.0).view(3, 4).t(),
        "h": torch.arange(5, dtype=torch.bfloat16),
        "e": torch.zeros(0, 3),
        "s": torch.tensor(2.5),
    }
    save({"model": tensors}, tmp_path)
    catalogue = read_dcp(tmp_path)
    for name, tensor in tensors.items():
        assert torch.equal(filled(catalogue, name, PARAMETER), tensor), name


def test_a_tensor_of_somebody_else_s_is_read_from_all_of_its_files(tmp_path: Path) -> None:
    """Beside a model there may be averages of it, which two ranks have in halves."""
    own, average = torch.arange(6.0).reshape(2, 3), torch.arange(8.0).reshape(4, 2)
    found = []
    for rank in (0, 1):
        name = f"__{rank}_0.distcp"
        with (tmp_path / name).open("wb") as file:
            writer = EntryWriter(file, name)
            if rank == 0:
                writer.tensor("model.w", (2, 3), ((0, 2), (0, 3)), own)
            writer.tensor("average.w", (4, 2), ((2 * rank, 2 * rank + 2), (0, 2)), average[2 * rank : 2 * rank + 2])
            found += writer.found
    paths = {"model.w": ("model", "w"), "average.w": ("average", "w")}
    write_metadata(tmp_path / METADATA, merged(found), paths)
    assert torch.equal(read_dcp(tmp_path).rest["average.w"], average)
    write_metadata(tmp_path / METADATA, merged(found[:-1]), paths)
    with pytest.raises(InputError, match=r"a tensor of \[4, 2\] that is neither the model's nor the optimizer's has"):
        read_dcp(tmp_path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (
            lambda folder: (folder / "__1_0.distcp").unlink(),
            "__1_0.distcp: no such file, and the checkpoint's",
        ),
        (lambda folder: truncate(folder / "__1_0.distcp", 0.5), "__1_0.distcp: is truncated: it has "),
        (lambda folder: truncate(folder / METADATA, 0.5), ".metadata: can't be read, it is truncated or broken"),
        (lambda folder: overwrite(folder / "__1_0.distcp"), "it is truncated or broken"),
        (lambda folder: (folder / METADATA).write_bytes(b"cos\nsystem\n(S'true'\ntR."), "it wants os.system"),
    ],
    ids=["missing file", "truncated file", "truncated metadata", "overwritten file", "a pickle that runs something"],
)
def test_broken_checkpoints(tmp_path: Path, harm: Any, words: str) -> None:
    save({"model": labelled(graph_of("llama"))}, tmp_path / "first")
    folder = write(read_dcp(tmp_path / "first"), for_layout(graph_of("llama"), LAYOUTS["tp4"]), tmp_path / "second")
    harm(folder)
    with pytest.raises(InputError) as said:
        read_dcp(folder)
    assert words in str(said.value)


def truncate(path: Path, part: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\1" * path.stat().st_size)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 4), (2, 1, 3, 2), (3, 1, 1)])
def test_flat_intervals_are_boxes(shape: tuple[int, ...]) -> None:
    whole = torch.arange(math.prod(shape)).view(shape)
    count = math.prod(shape)
    for start in range(count + 1):
        for stop in range(start, count + 1):
            boxes = list(flat_boxes(shape, start, stop))
            found = [whole[tuple(slice(a, b) for a, b in box)].flatten() for _, box in boxes]
            assert [int(part[0]) for part in found] == [place for place, _ in boxes]
            together = torch.cat(found) if found else torch.zeros(0, dtype=torch.long)
            assert torch.equal(together, torch.arange(start, stop))
            assert len(boxes) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("copies", [0, 1, 3, 5])
def test_parts_tile_the_dense_tensor(flipped: bool, copies: int) -> None:
    """Each element once, wherever it is held: 2 parts of 5 rows on 2 devices, padded to 6; in chunks of copies."""
    shard, dense = Shard(dim=0, parts=2, pieces=2, size=10, padded=12), torch.arange(30).view(10, 3)
    found = torch.full_like(dense, -1)
    for piece in range(2):
        local = torch.full((6, 3), -2)
        for box, view in parts_of(local, (10, 3), shard, piece):
            view.copy_(dense[tuple(slice(a, b) for a, b in box)])
        stored = (local.t() if flipped else local).contiguous()
        each = -(-18 // copies) if copies else 0
        flat = torch.cat([stored.flatten(), stored.new_zeros(max(0, each * copies - 18))])
        chunks = [(c * each, min(18, (c + 1) * each)) for c in range(copies)]
        held = [(flat[a : c * each + each], (a, b)) for c, (a, b) in enumerate(chunks)] if copies else [(stored, None)]
        for tensor, chunk in held:
            for box, view in parts_of(tensor, (10, 3), shard, piece, flipped=flipped, chunk=chunk):
                place = tuple(slice(a, b) for a, b in box)
                assert (found[place] == -1).all()
                found[place] = view
    assert torch.equal(found, dense)


@pytest.mark.slow
def test_a_vocabulary_of_64_mib_takes_less_memory_and_loses_its_padding(tmp_path: Path) -> None:
    """65,535 words saved as 65,536, and Adam's moments: 192 MiB, for one device."""
    config = {**CONFIGS["gpt2"], "vocab_size": 65535, "n_embd": 256, "n_layer": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = capture_config(config, samples=1, seq=16, dtype="float32", name="large")
    tensors = {t.name: torch.ones(t.shape) for t in graph.tensors if t.role == "parameter"}
    words = tensors["transformer.wte.weight"] = torch.arange(65536.0 * 256).view(65536, 256)
    save({"model": tensors, "optimizer": nested(tensors)["optimizer"]}, tmp_path / "saved")
    words = words[:65535].clone()
    del tensors
    stated = ["--cluster", "cpu", "--devices", "1", "--global-batch", "2", "--precision", "fp32", "--target", "partita"]
    assert main(["plan", str(tmp_path / "config.json"), *stated, "-o", str(tmp_path / "plan.json")]) == 0
    command = [str(Path(sys.executable).with_name("partita")), "reshard", str(tmp_path / "saved"), "--json"]
    command += ["--to", str(tmp_path / "plan.json"), "--model", str(tmp_path / "config.json"), "-o"]
    for threads in ("8", "1"):
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        done = subprocess.run(
            [*command, str(tmp_path / "out")], capture_output=True, text=True, timeout=200, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["source"]["padded"] == {"transformer.wte.weight": [65535, 65536]}
        # About 30 MiB on an idle machine; while others keep its cores busy up to 85 were seen. All of it would be 192.
        assert found["peak_bytes"] - found["before_bytes"] <= 96 * 2**20
    wte = {"model": {"transformer.wte.weight": torch.zeros(65535, 256)}}
    assert torch.equal(load(wte, tmp_path / "out")["model"]["transformer.wte.weight"], words)
