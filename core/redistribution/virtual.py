"""Steps carried out on NumPy arrays of virtual devices: slow, literal, and what other executions are held against.

A device reads its own array and what is given to it, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from partita.redistribution.array_type import ArrayType
from partita.redistribution.exchange import Copy, Exchange
from partita.redistribution.steps import Step
from partita.redistribution.view import Box


def distribute(array: np.ndarray, kind: ArrayType) -> dict[int, np.ndarray]:
    """What each device holds of an array. Of a sum, the first part has the value and the others are zero."""
    found = {}
    for place, device in enumerate(kind.mesh.devices):
        local = array[tuple(slice(start, stop) for start, stop in kind.boxes[place])].copy()
        found[device] = local if kind.parts[place] == 0 else np.zeros_like(local)
    return found


def collect(arrays: Mapping[int, np.ndarray], kind: ArrayType) -> np.ndarray:
    """The array that the devices hold together. AssertionError where replicas differ."""
    dtype = next(iter(arrays.values())).dtype
    whole = np.zeros(kind.shape, dtype)
    parts: dict[tuple[int, int], np.ndarray] = {}
    for place, device in enumerate(kind.mesh.devices):
        key = (int(kind.tiles[place]), int(kind.parts[place]))
        if key in parts:
            np.testing.assert_array_equal(parts[key], arrays[device])
            continue
        parts[key] = arrays[device]
        whole[tuple(slice(start, stop) for start, stop in kind.boxes[place])] += arrays[device]
    return whole


def run(steps: Sequence[Step], arrays: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The arrays of the devices after all steps; ``arrays`` are those of the first step's source."""
    here = dict(arrays)
    dtype = next(iter(here.values())).dtype
    for step in steps:
        exchange = Exchange(step)
        mail: dict[Copy, np.ndarray] = {}
        for device, array in here.items():
            for copy in exchange.gives(device):
                mail[replace(copy, add=False)] = _read(array, step.before, device, copy.box)
        here = {device: _made(exchange, device, here.get(device), mail, dtype) for device in step.after.mesh.devices}
    return here


def _made(
    exchange: Exchange,
    device: int,
    own: np.ndarray | None,
    mail: Mapping[Copy, np.ndarray],
    dtype: np.dtype,
) -> np.ndarray:
    kind = exchange.after
    # What isn't a sum begins with what is no value, where the dtype has one, so that a hole is seen.
    empty = 0 if kind.layout.partial or dtype.kind not in "fc" else np.nan
    made = np.full(kind.local_shape(kind.mesh.place[device]), empty, dtype)
    for copy in exchange.takes(device):
        if copy.source == device:
            assert own is not None
            value = _read(own, exchange.before, device, copy.box)
        else:
            value = mail[replace(copy, add=False)]
        index_there = _local(kind, device, copy.box)
        made[index_there] = made[index_there] + value if copy.add else value
    return made


def _read(array: np.ndarray, kind: ArrayType, device: int, box: Box) -> np.ndarray:
    return array[_local(kind, device, box)].copy()


def _local(kind: ArrayType, device: int, box: Box) -> tuple[slice, ...]:
    """A box of the tensor as indices of a device's array."""
    starts = kind.boxes[kind.mesh.place[device]][:, 0].tolist()
    return tuple(slice(a - start, b - start) for (a, b), start in zip(box, starts, strict=True))
