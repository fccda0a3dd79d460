"""Checkpoints of plans that run on torch's optimizers (targets partita and megatron): saved whole or not at all.

A checkpoint is torch's distributed one, in the model's own terms: each tensor dense, under its name, as boxes in the
files of the ranks that had them; padding is in none. So any plan of the same model can load what any other saved.

    model.NAME                     a parameter
    buffer.NAME                    a buffer, which is a constant: whole, and not read again by a run
    optimizer.state.NAME.STATE     exp_avg, exp_avg_sq … of its shape, or one number (step)
    optimizer.param_groups.0.lr    an option of a group as torch has them; ``params`` are names
    partita                        version, and the runtime's steps and seed: random numbers go on where they stopped
    state                          what the caller gave
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partita.adapters.torch.begin import agree
from partita.adapters.torch.boxes import parts_of
from partita.adapters.torch.dcp import METADATA, EntryWriter, merged, write_metadata
from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.whole import unwritten
from partita.errors import InputError, PartitaError
from partita.redistribution.view import Box

PARAMETER, STATE, GROUPS, FACTS, CALLERS = "model.", "optimizer.state.", "optimizer.param_groups.", "partita", "state"
BUFFER = "buffer."
VERSION = 1
# The one state that is a number even of a parameter that is one.
STEP = "step"


@dataclass(frozen=True)
class Held:
    """A stage's parameter on this rank: the dense shape, and how what the optimizer updates lies in it.

    ``writes``: of the ranks that hold the same, this one saves it; ``first``: and what there is once of a parameter.
    """

    name: str
    shape: tuple[int, ...]
    parts: Callable[[Tensor], Iterator[tuple[Box, Tensor]]]
    whole: Callable[[Tensor], Iterator[tuple[Box, Tensor]]]
    writes: bool
    first: bool


def held(runtime: Runtime, stage: StageModule, name: str) -> Held:
    """``parts`` of a tensor like the one that the optimizer updates, ``whole`` of one like the stage's parameter."""
    shard, divided = stage.piece.parameters[name], stage.divided(name)
    flipped = name in stage.flipped
    stored = tuple(divided.shape if divided else stage.parameters_by_name[name].shape)
    local = stored[::-1] if flipped else stored
    shape = local if shard is None else (*local[: shard.dim], shard.size, *local[shard.dim + 1 :])
    piece = stage.context.coordinates[shard.axis] if shard else 0
    chunk = None
    if divided is not None:
        begin = divided.group.rank * divided.each
        chunk = min(begin, divided.elements), min(begin + divided.each, divided.elements)
    copy = runtime.program.place(runtime.groups.rank, stage.piece.stage).data
    mine = stage.counts(name) and name not in stage.piece.copies
    return Held(
        name, shape, lambda tensor: parts_of(tensor, shape, shard, piece, flipped=flipped, chunk=chunk),
        lambda tensor: parts_of(tensor, shape, shard, piece, flipped=flipped),
        mine and (divided is not None or copy == 0), mine and copy == 0,
    )  # fmt: skip


def save_checkpoint(
    runtime: Runtime, engine: TorchEngine, folder: str | Path, state: Mapping[str, Any] | None = None
) -> None:
    """Write parameters, optimizer state, the place in the random numbers and ``state`` (plain values and tensors).

    Collective over all ranks. The folder appears when all of it is there, and takes the place of a checkpoint of that
    name. InputError on every rank where one can't write; what was there before still is.
    """
    final = Path(folder)
    partial = final.with_name(f".{final.name}.partial")
    first = runtime.groups.rank == 0
    _agree(runtime, lambda: _begin(partial, final) if first else None)
    try:
        found, groups = [], []
        name = f"__{runtime.groups.rank}_0.distcp"

        def write() -> None:
            # The first rank has made it, where all see one disk.
            partial.mkdir(parents=True, exist_ok=True)
            try:
                with (partial / name).open("wb") as file:
                    writer = EntryWriter(file, name)
                    groups.extend(_write(runtime, engine, writer))
                    if first:
                        for key, value in runtime.buffers.items():
                            writer.tensor(BUFFER + key, value.shape, tuple((0, size) for size in value.shape), value)
                        writer.object(FACTS, {"version": VERSION, "steps": runtime.steps, "seed": runtime.seed})
                        writer.object(CALLERS, plain(dict(state or {})))
                    found.extend(writer.found)
            except PartitaError:
                raise
            except Exception as error:
                raise unwritten(final / name, error, partial / name) from None

        _agree(runtime, write)
        everyones = runtime.groups.everyone.objects((found, groups))
        _agree(runtime, lambda: _finish(partial, final, everyones) if first else None)
    finally:
        if first:
            shutil.rmtree(partial, ignore_errors=True)


def _begin(partial: Path, final: Path) -> None:
    """InputError where something that isn't a checkpoint would be in the way."""
    if final.exists() and not (final.is_dir() and ((final / METADATA).exists() or not any(final.iterdir()))):
        raise InputError(f"{final}: exists and is no checkpoint; save under another name")
    # What a run that was killed in the middle left.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{final}: can't be written: {error.strerror}") from None


def _write(runtime: Runtime, engine: TorchEngine, writer: EntryWriter) -> list[dict[str, Any]]:
    """This rank's share of the tensors; its optimizers' groups, by names."""
    groups = []
    for number, stage in runtime.stages.items():
        updated = stage.updated
        for name, parameter in stage.parameters_by_name.items():
            own = held(runtime, stage, name)
            if not own.writes:
                continue
            divided = stage.divided(name)
            for box, part in own.parts(divided.chunk if divided else parameter):
                writer.tensor(PARAMETER + name, own.shape, box, part)
            optimizer = engine.optimizers.get(number)
            if optimizer is not None and name in updated:
                _write_state(writer, own, updated[name], optimizer.state.get(updated[name], {}))
        if optimizer := engine.optimizers.get(number):
            names = {id(parameter): name for name, parameter in updated.items()}
            for group in optimizer.param_groups:
                groups.append({**group, "params": [names[id(parameter)] for parameter in group["params"]]})
    return groups


def _write_state(writer: EntryWriter, own: Held, parameter: Tensor, states: Mapping[str, Any]) -> None:
    for state, value in states.items():
        key = f"{STATE}{own.name}.{state}"
        if not isinstance(value, Tensor):
            if own.first:
                writer.object(key, value)
        elif value.shape == parameter.shape and state != STEP:
            for box, part in own.parts(value):
                writer.tensor(key, own.shape, box, part)
        elif value.dim() == 0:
            if own.first:
                writer.tensor(key, (), (), value)
        else:
            raise InputError(
                f'the optimizer keeps a "{state}" of shape {list(value.shape)} of "{own.name}", whose own shape is '
                f"{list(parameter.shape)}: how it is divided isn't known, and so it can't be saved"
            )


def _finish(partial: Path, final: Path, everyones: Sequence[tuple[list, list]]) -> None:
    """Write what the ranks share, and give the checkpoint its name."""
    found = [entry for entries, _ in everyones for entry in entries]
    name = "__common.distcp"
    try:
        with (partial / name).open("wb") as file:
            writer = EntryWriter(file, name)
            for key, option in group_options([group for _, groups in everyones for group in groups]).items():
                writer.object(key, plain(option))
        stored = merged(found + writer.found)
        unseen = {entry.file for one in stored.values() for entry in one.entries} - {*os.listdir(partial)}
        if unseen:
            raise InputError(
                f"{final}: rank 0 doesn't see {min(unseen)}, which another rank has written; all ranks must save to "
                "one file system"
            )
        write_metadata(partial / METADATA, stored, {key: path_of(key) for key in stored})
        before = final.with_name(f".{final.name}.before")
        shutil.rmtree(before, ignore_errors=True)
        if final.exists():
            os.rename(final, before)
        os.rename(partial, final)
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{final}: can't be written: {error.strerror or error}") from None


def group_options(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The groups of all stages' optimizers as those of one, each option under its name in the checkpoint.

    Groups of the same options are the same group.
    """
    joined: list[dict[str, Any]] = []
    for group in groups:
        same = next((one for one in joined if _options_equal(one, group)), None)
        if same is None:
            joined.append(same := {**group, "params": []})
        same["params"] += [name for name in group["params"] if name not in same["params"]]
    return {f"{GROUPS}{index}.{key}": value for index, group in enumerate(joined) for key, value in group.items()}


def groups_of(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups again."""
    found: dict[int, dict[str, Any]] = {}
    for key, value in options.items():
        index, _, option = key.removeprefix(GROUPS).partition(".")
        found.setdefault(int(index), {})[option] = value
    return [found[index] for index in sorted(found)]


def _options_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, Tensor) else value == other[key]
        for key, value in one.items()
        if key != "params"
    )


def path_of(key: str) -> tuple[str | int, ...]:
    """Where a name of a checkpoint stands in a nested dict: as torch nests a model's and an optimizer's state."""
    if key.startswith(STATE):
        name, _, state = key.removeprefix(STATE).rpartition(".")
        return ("optimizer", "state", name, state)
    if key.startswith(GROUPS):
        index, _, option = key.removeprefix(GROUPS).partition(".")
        return ("optimizer", "param_groups", int(index), option)
    # A module's state has both.
    own = next((kind for kind in (PARAMETER, BUFFER) if key.startswith(kind)), None)
    return (key,) if own is None else ("model", key.removeprefix(own))


def plain(value: Any) -> Any:
    """The value itself. InputError where it isn't made of plain values and tensors, which alone are read again."""
    written = io.BytesIO()
    try:
        torch.save(value, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:
        raise InputError(
            f"a checkpoint's state is plain values and tensors; this one can't be saved: {str(error).splitlines()[0]}"
        ) from None
    return value


def _agree(runtime: Runtime, act: Callable[[], object]) -> None:
    """Act, and go on if all ranks could; otherwise InputError on all of them. Collective."""
    failure = None
    try:
        act()
    except Exception as error:
        failure = error
    agree(runtime.groups.everyone, failure, torch.zeros((), dtype=torch.float64, device=runtime.device))
