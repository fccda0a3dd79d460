"""Redistribution of NumPy arrays on virtual devices: what ``materialise`` says, carried out literally.

Each device reads its own arrays and what was sent to it, nothing else. It is slow and is what other executions are held
against.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.redistribution.view import Box, View
from tests.redistribution.cover import require_cover
from tests.redistribution.materialise import Consumer, Take, materialise


def redistribute_numpy(
    tensor: str, producers: Sequence[tuple[int, View, np.ndarray]], consumers: Sequence[Consumer]
) -> list[np.ndarray]:
    """The array of each consumer. ``producers`` are devices, views and arrays of the views' shapes, of one dtype.

    PlanError as of ``materialise``; all dtypes that add up are carried as they are.
    """
    memory: dict[int, dict[View, np.ndarray]] = {}
    for device, view, array in producers:
        assert array.shape == view.shape, (array.shape, view)
        memory.setdefault(device, {})[view] = array
    dtype = producers[0][2].dtype if producers else np.dtype("float64")
    wanted = materialise(tensor, [(device, view) for device, view, _ in producers], consumers)
    for (device, view), takes in zip(consumers, wanted, strict=True):
        require_cover(tensor, device, view, takes)
    sent = [
        [_read(memory[take.source], take) for take in takes if take.source != device]
        for (device, _), takes in zip(consumers, wanted, strict=True)
    ]
    return [
        _write(view, takes, device, memory.get(device, {}), inbox, dtype)
        for (device, view), takes, inbox in zip(consumers, wanted, sent, strict=True)
    ]


def _read(own: dict[View, np.ndarray], take: Take) -> np.ndarray:
    return own[take.view][_index(take.interval)].copy()


def _write(
    view: View,
    takes: Sequence[Take],
    device: int,
    own: dict[View, np.ndarray],
    inbox: list[np.ndarray],
    dtype: np.dtype,
) -> np.ndarray:
    # A whole value begins with what is no value where the dtype has one, so that a hole is seen.
    start = 0 if view.n > 1 or dtype.kind not in "fc" else np.nan
    made = np.full(view.shape, start, dtype)
    arrived = iter(inbox)
    for take in takes:
        array = _read(own, take) if take.source == device else next(arrived)
        if take.add:
            array = made[_index(take.into)] + array
        made[_index(take.into)] = array
    return made


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
