"""Queues carried out as blocking queues: what a program does when it runs, told without the proof.

A message lies in the first-in-first-out queue of its stream until the other side takes it; a receive blocks until there
is one. Devices that share a collective meet in it. A device is done when it is at its end and all that it sent was
taken. The names of values are followed, so that a turn without what it reads, and a message that is another than the
one that is wanted, are seen. One device with a stage's copy each: no tensor parallelism.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from partita.spacetime.program import Program, Task

Outcome = Literal["ends", "hangs", "breaks"]


def outcome(program: Program) -> Outcome:
    """``hangs``: somebody waits for ever. ``breaks``: a device reads what it hasn't, or gets another message."""
    position = dict.fromkeys(program.queues, 0)
    there: dict[int, set[str]] = {device: set() for device in program.queues}
    streams: dict[tuple[int, int, bool], deque[str]] = {}
    moved = True
    while moved:
        moved = False
        for device, queue in program.queues.items():
            while position[device] < len(queue):
                task = queue[position[device]]
                if task.transfer is not None and task.peer is not None:
                    ends = (device, task.peer) if task.kind == "send" else (task.peer, device)
                    stream = streams.setdefault((*ends, task.transfer.backwards), deque())
                    key = task.transfer.key(task.micro)
                    if task.kind == "send":
                        stream.append(key)
                    elif not stream:
                        break
                    elif stream.popleft() != key:
                        return "breaks"
                elif partners := meet(program, device, task):
                    heads = [program.queues[other][position[other] :][:1] for other in partners]
                    if any(not head or told(head[0]) != told(task) for head in heads):
                        break
                    for other in partners:
                        if other != device:
                            if not used(there[other], program.queues[other][position[other]]):
                                return "breaks"
                            position[other] += 1
                if not used(there[device], task):
                    return "breaks"
                position[device] += 1
                moved = True
    ended = all(position[device] == len(queue) for device, queue in program.queues.items())
    return "ends" if ended and not any(streams.values()) else "hangs"


def used(values: set[str], task: Task) -> bool:
    """Reads, writes and frees a task's values. False where one is missing. Parameters are always there."""
    if task.micro is None:
        return True
    if not values.issuperset(task.reads):
        return False
    values.update(task.writes)
    values.difference_update(task.frees)
    return True


def meet(program: Program, device: int, task: Task) -> tuple[int, ...]:
    """Who must be there: all copies where a gradient is averaged, and where what is divided is put together."""
    devices = program.devices_of[task.stage]
    zero = max((program.zero.get(name, 0) for name in program.pieces[task.stage].parameters), default=0)
    meets = {"forward": zero == 3, "backward": zero >= 2, "reduce": True, "update": zero in (1, 2)}
    return devices if len(devices) > 1 and meets.get(task.kind, False) else ()


def told(task: Task) -> tuple[str, int, int | None]:
    return task.kind, task.stage, task.micro
