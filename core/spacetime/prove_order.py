"""No device waits for ever: the order of the queues and the data that crosses devices have no cycle.

Under the communication model a device waits in two places only: at a receive until the message was sent, and at a task
with collectives until all who share them are there. Nothing that a device does can take away what another waits for, so
if one execution reaches the end all do; and where one stands still, each of its devices waits for another that does.
That a receive is posted early (``ahead`` reaches at least the task itself) and that a stream is first in, first out
take no more: the queues' proof has both sides of each stream in one order.
"""

from __future__ import annotations

from collections import Counter, deque

from partita.errors import PlanError
from partita.spacetime.communication import TOGETHER, begins_with
from partita.spacetime.program import Program, Task


def named(task: Task) -> str:
    """A task in a message: ``forward of micro-batch 2``, ``receive of "h@2"``."""
    if task.transfer is not None:
        return f'{task.kind} of "{task.transfer.key(task.micro)}"'
    return task.kind if task.micro is None else f"{task.kind} of micro-batch {task.micro}"


def prove_order(program: Program) -> None:
    """PlanError with the shortest cycle of devices that wait for each other, by the names of their tasks.

    Linear in tasks. Both sides of each stream must keep one order, as the queues' proof has shown.
    """
    queues = program.queues
    groups = {
        (device, place.stage, kind): group
        for device in queues
        for place in program.places[device]
        for kind in TOGETHER
        if len(group := begins_with(program, device, place.stage, kind)) > 1
    }
    position = dict.fromkeys(queues, 0)
    sent: Counter[tuple[int, int, bool]] = Counter()
    taken: Counter[tuple[int, int, bool]] = Counter()
    waiting: dict[tuple[int, int, bool], int] = {}
    gathered: dict[tuple[int, ...], list[int]] = {}
    ready = deque(queues)
    while ready:
        device = ready.popleft()
        queue = queues[device]
        while position[device] < len(queue):
            task = queue[position[device]]
            if task.transfer is not None and task.peer is not None:
                back = task.transfer.backwards
                if task.kind == "send":
                    stream = (device, task.peer, back)
                    sent[stream] += 1
                    if stream in waiting:
                        ready.append(waiting.pop(stream))
                else:
                    stream = (task.peer, device, back)
                    if taken[stream] == sent[stream]:
                        waiting[stream] = device
                        break
                    taken[stream] += 1
            elif (device, task.stage, task.kind) in groups:
                group = groups[device, task.stage, task.kind]
                there = gathered.setdefault(group, [])
                there.append(device)
                if len(there) < len(group):
                    break
                gathered[group] = []
                _one_collective(program, position, there)
                for other in there:
                    position[other] += 1
                ready.extend(other for other in there if other != device)
                continue
            position[device] += 1
    if any(position[device] < len(queue) for device, queue in queues.items()):
        _standstill(program, position, groups)


def _one_collective(program: Program, position: dict[int, int], there: list[int]) -> None:
    """Whether those who meet have come for the same task."""
    first, *others = sorted(there)
    mine = program.queues[first][position[first]]
    for other in others:
        theirs = program.queues[other][position[other]]
        if (mine.kind, mine.stage, mine.micro) != (theirs.kind, theirs.stage, theirs.micro):
            stages = mine.stage != theirs.stage
            comes, meets = (named(t) + (f" of stage {t.stage}" if stages else "") for t in (mine, theirs))
            raise PlanError(
                f"the devices {sorted(there)} share collectives and must keep one order: device {first} comes with "
                f"{comes}, device {other} with {meets}"
            )


def _standstill(
    program: Program, position: dict[int, int], groups: dict[tuple[int, int, str], tuple[int, ...]]
) -> None:
    """Raise the shortest cycle among the devices that stand still, or the device that another waits for in vain."""
    queues = program.queues
    head = {d: queue[position[d]] for d, queue in queues.items() if position[d] < len(queue)}
    waits: dict[int, list[int]] = {}
    for device, task in head.items():
        if task.peer is not None:
            waits[device] = [task.peer]
        else:
            # Whoever stands at a task of the same group waits himself.
            group = groups[device, task.stage, task.kind]
            waits[device] = [o for o in group if o not in head or groups.get((o, head[o].stage, head[o].kind)) != group]
    for device, others in waits.items():
        if ended := [other for other in others if other not in head]:
            raise PlanError(
                f"device {device} waits in {named(head[device])} for device {ended[0]}, whose queue has ended"
            )
    cycles = [found for device in sorted(waits) if (found := _back_to(device, waits))]
    shortest = min(cycles, key=len)
    clauses = [
        f"device {device} waits in {named(head[device])} (task {position[device]}) for device {other}"
        for device, other in zip(shortest, [*shortest[1:], shortest[0]], strict=True)
    ]
    raise PlanError("the order deadlocks: " + "; ".join(clauses))


def _back_to(start: int, waits: dict[int, list[int]]) -> list[int] | None:
    """The shortest way from a device back to itself."""
    before: dict[int, int] = {}
    pending = deque([start])
    while pending:
        device = pending.popleft()
        for other in waits[device]:
            if other == start:
                way = [device]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if other not in before:
                before[other] = device
                pending.append(other)
    return None
