"""Runs the queues of a program against the clock.

A device takes the tasks of its queue one after another. A turn or an update occupies it for its time; members of a
group whose turns hold collectives begin together. A send doesn't wait; a receive waits until the message is there. A
message starts when it is sent, its receive is posted (the runtime posts those up to the second turn from where it
stands) and the one before it has arrived: between two devices the values are one stream and the gradients another,
each in order. What arrives in parts is joined in no time: a copy in the device's memory is nothing beside a turn. Every
event costs the same however long the queues are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from partita.errors import PlanError
from partita.simulate.fabric import Fabric, Route
from partita.simulate.sharing import Message, Sharing
from partita.spacetime.communication import TOGETHER, ahead, begins_with
from partita.spacetime.program import Program, Task, Transfer


@dataclass(frozen=True)
class Timing:
    """Seconds of each task of one device's queue.

    ``issued``: when the device comes to it, for a receive when it is posted. ``starts`` and ``ends``: a turn's own; of
    a send and of its receive those of the message.
    """

    issued: tuple[float, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]


class _Device:
    """Where one device stands in its queue."""

    __slots__ = ("arrivals", "ends", "groups", "issued", "number", "position", "posted", "queue", "starts")

    def __init__(self, number: int, queue: Sequence[Task], groups: Mapping[tuple[int, str], _Group | None]):
        self.number, self.queue, self.groups = number, queue, groups
        self.position = self.posted = 0
        self.issued = [0.0] * len(queue)
        self.starts = [0.0] * len(queue)
        self.ends = [0.0] * len(queue)
        self.arrivals: set[int] = set()


class _Group:
    """Devices that begin a task together, and those of them that have come to it."""

    __slots__ = ("members", "waiting")

    def __init__(self, members: tuple[int, ...]):
        self.members = members
        self.waiting: list[_Device] = []


class _Stream:
    """Messages from one device to another that keep their order: those sent, those posted, whether one is under way."""

    __slots__ = ("busy", "posted", "route", "sent")

    def __init__(self, route: Route):
        self.route = route
        self.sent: deque[int] = deque()
        self.posted: deque[int] = deque()
        self.busy = False


def execute(
    program: Program,
    seconds: Mapping[tuple[int, str], float],
    size_bytes: Callable[[Transfer], float],
    fabric: Fabric,
) -> dict[int, Timing]:
    """The times of every task. ``seconds`` of a task by (stage, kind), ``size_bytes`` of a message by its transfer.

    PlanError where the queues don't fit each other: devices that wait for each other for ever, a message that is not
    the one that the receiver takes next.
    """
    return _Clock(program, seconds, size_bytes, fabric).run()


class _Clock:
    def __init__(
        self,
        program: Program,
        seconds: Mapping[tuple[int, str], float],
        size_bytes: Callable[[Transfer], float],
        fabric: Fabric,
    ):
        self.seconds, self.size_bytes, self.fabric = seconds, size_bytes, fabric
        self.sharing = Sharing(fabric.bytes_per_second)
        self.streams: dict[tuple[int, int, bool], _Stream] = {}
        # (seconds, number of the event, its version, what ends): the number keeps the order among equal times.
        self.events: list[tuple[float, int, int, Message | list[_Device]]] = []
        self.count = 0
        groups: dict[tuple[int, ...], _Group] = {}
        self.devices = {
            number: _Device(
                number,
                queue,
                {
                    (place.stage, kind): _group(groups, begins_with(program, number, place.stage, kind))
                    for place in program.places[number]
                    for kind in TOGETHER
                },
            )
            for number, queue in program.queues.items()
        }

    def run(self) -> dict[int, Timing]:
        for device in self.devices.values():
            self._advance(device, 0.0)
        while self.events:
            now, _, version, what = heappop(self.events)
            if isinstance(what, Message):
                if version == what.version:
                    self._arrive(what, now)
                continue
            for device in what:
                device.ends[device.position] = now
                device.position += 1
            for device in what:
                self._advance(device, now)
        stuck = [device for device in self.devices.values() if device.position < len(device.queue)]
        if stuck:
            raise PlanError(_standstill(self.devices, stuck[0]))
        return {
            number: Timing(tuple(device.issued), tuple(device.starts), tuple(device.ends))
            for number, device in self.devices.items()
        }

    def _push(self, now: float, version: int, what: Message | list[_Device]) -> None:
        self.count += 1
        heappush(self.events, (now, self.count, version, what))

    def _advance(self, device: _Device, now: float) -> None:
        """Carry out tasks until one takes time or waits."""
        queue = device.queue
        while device.position < len(queue):
            self._post(device, now)
            position = device.position
            task = queue[position]
            if task.kind == "send":
                device.issued[position] = now
                assert task.peer is not None
                self._stream(device.number, task.peer, task).sent.append(position)
                self._match(device.number, task.peer, task, now)
            elif task.kind == "receive":
                if position not in device.arrivals:
                    return
                device.arrivals.remove(position)
            elif task.kind == "join":
                device.issued[position] = device.starts[position] = device.ends[position] = now
            else:
                device.issued[position] = now
                self._begin(device, task, now)
                return
            device.position += 1

    def _post(self, device: _Device, now: float) -> None:
        end = ahead(device.queue, device.position)
        for position in range(device.posted, end):
            task = device.queue[position]
            if task.kind == "receive":
                device.issued[position] = now
                assert task.peer is not None
                self._stream(task.peer, device.number, task).posted.append(position)
                self._match(task.peer, device.number, task, now)
        device.posted = max(device.posted, end)

    def _begin(self, device: _Device, task: Task, now: float) -> None:
        """A turn, a reduction or an update, once all who take part are there."""
        group = device.groups.get((task.stage, task.kind))
        members = [device]
        if group is not None:
            group.waiting.append(device)
            if len(group.waiting) < len(group.members):
                return
            members, group.waiting = group.waiting, []
            tasks = [member.queue[member.position] for member in members]
            met = {(task.kind, task.stage, task.micro) for task in tasks}
            if len(met) > 1:
                raise PlanError(
                    f"devices {list(group.members)} meet in a collective of different tasks: {sorted(met, key=str)}"
                )
        for member in members:
            member.starts[member.position] = now
        self._push(now + self.seconds[task.stage, task.kind], 0, members)

    def _stream(self, source: int, target: int, task: Task) -> _Stream:
        assert task.transfer is not None
        key = (source, target, task.transfer.backwards)
        found = self.streams.get(key)
        if found is None:
            found = self.streams[key] = _Stream(self.fabric.route(source, target))
        return found

    def _match(self, source: int, target: int, task: Task, now: float) -> None:
        """Put the stream's next message under way, if both ends are ready and the one before has arrived."""
        stream = self._stream(source, target, task)
        if stream.busy or not stream.sent or not stream.posted:
            return
        sender, receiver = stream.sent.popleft(), stream.posted.popleft()
        send, receive = self.devices[source].queue[sender], self.devices[target].queue[receiver]
        assert send.transfer is not None
        assert receive.transfer is not None
        gone, wanted = send.transfer.key(send.micro), receive.transfer.key(receive.micro)
        if gone != wanted:
            raise PlanError(
                f'device {source} sends "{gone}" where device {target} receives "{wanted}": '
                "between two devices both sides must keep one order"
            )
        stream.busy = True
        message = Message((source, sender), (target, receiver), self.size_bytes(send.transfer), stream.route)
        self.devices[source].starts[sender] = self.devices[target].starts[receiver] = now
        for changed in self.sharing.start(message, now):
            self._push(changed.ends, changed.version, changed)

    def _arrive(self, message: Message, now: float) -> None:
        for changed in self.sharing.end(message, now):
            self._push(changed.ends, changed.version, changed)
        source, sender = message.sender
        target, receiver = message.receiver
        task = self.devices[source].queue[sender]
        self._stream(source, target, task).busy = False
        self.devices[source].ends[sender] = now
        device = self.devices[target]
        device.ends[receiver] = now
        device.arrivals.add(receiver)
        self._match(source, target, task, now)
        if device.position == receiver:
            self._advance(device, now)


def _group(groups: dict[tuple[int, ...], _Group], members: tuple[int, ...]) -> _Group | None:
    return groups.setdefault(members, _Group(members)) if len(members) > 1 else None


def _standstill(devices: Mapping[int, _Device], first: _Device) -> str:
    """Who waits for whom, from one device that stands still until one is met again."""
    clauses: list[str] = []
    met: list[int] = []
    device: _Device | None = first
    while device is not None and device.number not in met:
        met.append(device.number)
        if device.position == len(device.queue):
            clauses.append(f"device {device.number} has ended")
            break
        task = device.queue[device.position]
        if task.kind == "receive":
            assert task.peer is not None
            clauses.append(f'device {device.number} waits for "{task.writes[0]}" from device {task.peer}')
            device = devices[task.peer]
        else:
            group = device.groups[task.stage, task.kind]
            assert group is not None
            absent = [n for n in group.members if devices[n] not in group.waiting]
            clauses.append(
                f"device {device.number} waits in {task.kind} of micro-batch {task.micro} for device {absent[0]}"
            )
            device = devices[absent[0]]
    return "the queues come to a standstill: " + ", ".join(clauses)
