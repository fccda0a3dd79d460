"""Loading a checkpoint of ``checkpoint.py``, whichever plan saved it: each rank reads the boxes that it holds.

All that is needed is looked at before anything is changed: where a checkpoint is broken or of another model, the run is
as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partita.adapters.torch.begin import agree
from partita.adapters.torch.boxes import slices
from partita.adapters.torch.checkpoint import (
    CALLERS,
    FACTS,
    GROUPS,
    PARAMETER,
    STATE,
    STEP,
    VERSION,
    Held,
    groups_of,
    held,
)  # fmt: skip
from partita.adapters.torch.dcp import EntryReader, Stored, read_metadata
from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import StageModule
from partita.errors import InputError
from partita.redistribution.view import Box, View, intersection, said

# What is read: a view to be filled, the box of the dense tensor that it is, and where the tensor stands.
Job = tuple[Tensor, Box, Stored]


def load_checkpoint(
    runtime: Runtime, engine: TorchEngine, folder: str | Path, *, optimizer: bool = True
) -> dict[str, Any]:
    """Go on from a checkpoint: parameters, optimizer state and steps; returns the ``state`` that was saved with it.

    Collective over all ranks. Without ``optimizer`` the parameters alone. InputError on every rank, and nothing is
    changed, where a part is missing or broken, or the checkpoint is another model's.
    """
    reading = _Reading(runtime, engine, Path(folder))
    failure = None
    try:
        reading.look(optimizer)
    except Exception as error:
        failure = error
    agree(runtime.groups.everyone, failure, torch.zeros((), dtype=torch.float64, device=runtime.device))
    return reading.apply(optimizer)


class _Reading:
    def __init__(self, runtime: Runtime, engine: TorchEngine, folder: Path):
        self.runtime, self.engine, self.folder = runtime, engine, folder
        self.reader = EntryReader(folder)
        self.stored: dict[str, Stored] = {}
        self.jobs: list[Job] = []
        self.states: dict[int, dict[str, Any]] = {}
        self.facts: Mapping[str, Any] = {}
        self.callers: dict[str, Any] = {}

    def look(self, optimizer: bool) -> None:
        """Find everything, and make room for the optimizers' state."""
        self.stored = read_metadata(self.folder).stored
        self.facts, self.callers = self._object(FACTS), self._object(CALLERS)
        if self.facts["version"] != VERSION:
            raise InputError(f"{self.folder}: is of version {self.facts['version']}; this Partita reads {VERSION}")
        self._require_model()
        for number, stage in self.runtime.stages.items():
            for name, parameter in stage.parameters_by_name.items():
                self._parameter(stage, name, parameter)
            if optimizer and number in self.engine.optimizers:
                self.states[number] = self._optimizer(number, stage)
        for _, box, stored in self.jobs:
            self._require_there(box, stored)

    def apply(self, optimizer: bool) -> dict[str, Any]:
        """Change the run."""
        with torch.no_grad():
            for view, box, stored in self.jobs:
                for common, entry in _sources(box, stored):
                    assert entry.box is not None
                    source = self.reader.tensor(entry)[slices(common, entry.box)]
                    view[slices(common, box)].copy_(source)
        for number, state in self.states.items():
            self.engine.optimizers[number].load_state_dict(state)
        if optimizer:
            self.runtime.steps = self.facts["steps"]
            # A checkpoint of another engine has none.
            self.runtime.seed = self.runtime.seed if self.facts["seed"] is None else self.facts["seed"]
        return self.callers

    def _require_model(self) -> None:
        """All parameters of the model must be there, and no others: every rank knows them all."""
        wanted = {name for piece in self.runtime.program.pieces for name in piece.parameters}
        has = {name.removeprefix(PARAMETER) for name in self.stored if name.startswith(PARAMETER)}
        odd, what = sorted(wanted - has), "lacks"
        if not odd:
            odd, what = sorted(has - wanted), "has, which the model doesn't,"
        if odd:
            raise InputError(
                f'{self.folder}: is a checkpoint of another model: it {what} "{odd[0]}"'
                + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")
                + f"; it has {len(has)} parameters, the model {len(wanted)}"
            )

    def _parameter(self, stage: StageModule, name: str, parameter: Tensor) -> None:
        own, stored, divided = held(self.runtime, stage, name), self.stored[PARAMETER + name], stage.divided(name)
        if stored.shape != own.shape:
            raise InputError(
                f'{self.folder}: is a checkpoint of another model: "{name}" has shape {list(stored.shape)}, the '
                f"model's has {list(own.shape)}"
            )
        # With ZeRO 1 and 2 the whole parameter is there, and the chunk is a view of it.
        parts = own.parts(parameter.data) if divided and divided.zero == 3 else own.whole(parameter.data)
        self.jobs += [(view, box, stored) for box, view in parts]

    def _optimizer(self, number: int, stage: StageModule) -> dict[str, Any]:
        """The state dict of a stage's optimizer, with tensors that the jobs will fill."""
        options = {key: self._object(key) for key in self.stored if key.startswith(GROUPS)}
        if not options:
            raise InputError(f"{self.folder}: holds no optimizer state; optimizer=False loads the parameters alone")
        saved = {name: group for group in groups_of(options) for name in group["params"]}
        names = {id(parameter): name for name, parameter in stage.updated.items()}
        kinds = self._states_by_name()
        state: dict[int, dict[str, Any]] = {}
        groups, index = [], 0
        for group in self.engine.optimizers[number].param_groups:
            own = [names[id(parameter)] for parameter in group["params"]]
            groups.append({**self._options(own, saved), "params": list(range(index, index + len(own)))})
            for name, parameter in zip(own, group["params"], strict=True):
                one = held(self.runtime, stage, name)
                if found := kinds.get(name):
                    state[index] = {kind: self._value(one, parameter, kind, entry) for kind, entry in found.items()}
                index += 1
        return {"state": state, "param_groups": groups}

    def _states_by_name(self) -> dict[str, dict[str, Stored]]:
        found: dict[str, dict[str, Stored]] = {}
        for key, stored in self.stored.items():
            if key.startswith(STATE):
                name, _, kind = key.removeprefix(STATE).rpartition(".")
                found.setdefault(name, {})[kind] = stored
        return found

    def _options(self, names: list[str], saved: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The options that these parameters, a group of this optimizer, were saved with."""
        if lost := [name for name in names if name not in saved]:
            raise InputError(f'{self.folder}: the optimizer that was saved didn\'t train "{lost[0]}", this one does')
        found = list({id(saved[name]): saved[name] for name in names}.values())
        if len(found) > 1:
            raise InputError(
                f'{self.folder}: "{names[0]}" and others are one parameter group here, and were saved as {len(found)} '
                "with other options; make the optimizer with the same groups"
            )
        return {key: value for key, value in found[0].items() if key != "params"}

    def _value(self, own: Held, parameter: Tensor, kind: str, stored: Stored) -> Any:
        if stored.dtype is None:
            return self.reader.object(stored.entries[0])
        if stored.shape == own.shape and kind != STEP:
            value = torch.zeros_like(parameter, dtype=stored.dtype, requires_grad=False)
            self.jobs += [(view, box, stored) for box, view in own.parts(value)]
            return value
        return self.reader.tensor(stored.entries[0]).clone()

    def _object(self, name: str) -> Any:
        if name not in self.stored:
            raise InputError(
                f'{self.folder}: has no "{name}", so Partita didn\'t save it; partita reshard makes a checkpoint of it '
                "that can be loaded"
            )
        return self.reader.object(self.stored[name].entries[0])

    def _require_there(self, box: Box, stored: Stored) -> None:
        found = 0
        for common, entry in _sources(box, stored):
            self.reader.place(entry)
            found += View(common).elements
        if found < View(box).elements:
            name = next(name for name, one in self.stored.items() if one is stored)
            raise InputError(
                f'{self.folder}: of "{name}", {said(box)}, {View(box).elements - found} elements are in no file of it'
            )


def _sources(box: Box, stored: Stored) -> list[tuple[Box, Any]]:
    """The entries that have a part of the box, each with that part."""
    found = []
    for entry in stored.entries:
        assert entry.box is not None
        if (common := intersection(entry.box, box)) is not None:
            found.append((common, entry))
    return found
