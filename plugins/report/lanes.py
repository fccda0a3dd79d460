"""Which devices are drawn as one: those that do the same at the same time.

Up to 32 devices each has a lane of its own. Of more, those are drawn once that run the same tasks in the same order, to
half a pixel of time, and hold the same at their peak. Where that is still too much to look at, times may differ: the
page says by how much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from partita.simulate import Simulation

# Devices that have a lane each; lanes that a page has at most.
EACH, MOST = 32, 64


@dataclass(frozen=True)
class Lane:
    """Devices drawn as their first one; ``off_seconds``: as much earlier or later another of them has a task."""

    devices: tuple[int, ...]
    off_seconds: float = 0.0

    @property
    def first(self) -> int:
        return self.devices[0]


def alone(simulation: Simulation) -> list[Lane]:
    """A lane for each device."""
    return [Lane((device,)) for device in sorted(simulation.timings)]


def alike(simulation: Simulation, tolerance_seconds: float) -> list[Lane]:
    """Devices with the same tasks, whose times differ by the tolerance at most, and with the same peak."""
    found: dict[tuple[object, ...], list[list[int]]] = {}
    times: dict[int, np.ndarray] = {}
    off: dict[int, float] = {}
    for device in sorted(simulation.timings):
        timing = simulation.timings[device]
        times[device] = np.array([timing.starts, timing.ends])
        key = (simulation.peaks[device].total, tuple(_tasks(simulation, device)))
        groups = found.setdefault(key, [])
        for group in groups:
            difference = float(np.abs(times[group[0]] - times[device]).max(initial=0.0))
            if difference <= tolerance_seconds:
                group.append(device)
                off[group[0]] = max(off[group[0]], difference)
                break
        else:
            groups.append([device])
            off[device] = 0.0
    lanes = [Lane(tuple(group), off[group[0]]) for groups in found.values() for group in groups]
    return sorted(lanes, key=lambda lane: lane.first)


def groups(simulation: Simulation, pixel_seconds: float) -> list[Lane]:
    """Devices that are alike; more than a page has room for are told apart by their tasks and peaks alone."""
    found = alike(simulation, pixel_seconds / 2)
    return found if len(found) <= MOST else alike(simulation, float("inf"))


def _tasks(simulation: Simulation, device: int) -> Iterable[tuple[object, ...]]:
    for task in simulation.program.queues[device]:
        transfer = task.transfer and (task.transfer.tensor, task.transfer.what)
        yield task.kind, task.stage, task.micro, transfer
