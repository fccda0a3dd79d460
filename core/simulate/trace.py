"""A simulated step as a Chrome trace, which Perfetto and chrome://tracing show: a process a device.

Its tracks are the turns, what it sends, what it receives, and a counter of its memory. Messages that overlap (values
and gradients are streams of their own) take a second track of the same name. Times are microseconds, memory is bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from partita.simulate.result import Simulation
from partita.spacetime.program import Task

TRACKS = ("compute", "sends", "receives")


def trace(simulation: Simulation) -> str:
    """The JSON text."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in _events(simulation))
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _events(simulation: Simulation) -> Iterator[dict[str, Any]]:
    for device in sorted(simulation.timings):
        stages = [place.stage for place in simulation.program.places[device]]
        name = {"name": f"device {device}, stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"}
        yield {"ph": "M", "pid": device, "name": "process_name", "args": name}
        yield {"ph": "M", "pid": device, "name": "process_sort_index", "args": {"sort_index": device}}
        yield from _tasks(simulation, device)
        state = simulation.held(device).total
        for moment in simulation.memory(device):
            held = {"state": state, "activations": moment.activations, "temporary": moment.temporary,
                    "buffers": moment.buffers}  # fmt: skip
            yield {"ph": "C", "pid": device, "name": "memory", "ts": 1e6 * moment.seconds, "args": held}


def _tasks(simulation: Simulation, device: int) -> Iterator[dict[str, Any]]:
    """Each task as a slice; tracks are numbered as they are needed."""
    ends: dict[str, list[float]] = {track: [0.0] for track in TRACKS}
    for index, track in enumerate(TRACKS):
        yield _named(device, 100 * index, track)
    for task, start, end in sorted(simulation.intervals(device), key=lambda interval: interval[1]):
        track = {"send": "sends", "receive": "receives"}.get(task.kind, "compute")
        free = ends[track]
        lane = next((lane for lane, until in enumerate(free) if until <= start), len(free))
        if lane == len(free):
            free.append(end)
            yield _named(device, 100 * TRACKS.index(track) + lane, f"{track} {lane + 1}")
        free[lane] = end
        yield {
            "ph": "X", "pid": device, "tid": 100 * TRACKS.index(track) + lane, "name": _name(task), "cat": task.kind,
            "ts": 1e6 * start, "dur": 1e6 * (end - start), "args": _arguments(task),
        }  # fmt: skip


def _named(device: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": device, "tid": track, "name": "thread_name", "args": {"name": name}}


def _name(task: Task) -> str:
    if task.transfer is not None:
        return task.reads[0] if task.kind == "send" else task.writes[0]
    return task.kind if task.micro is None else f"{task.kind} {task.micro}"


def _arguments(task: Task) -> dict[str, Any]:
    found: dict[str, Any] = {"stage": task.stage}
    if task.micro is not None:
        found["micro_batch"] = task.micro
    if task.peer is not None:
        found["peer"] = task.peer
    return found
