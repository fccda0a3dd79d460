"""Groups and lines between virtual devices: queues of one process in the place of torch.distributed.

Each device has its own memory: what is sent, gathered or summed is copied. Between two devices values and gradients
are two streams, each first in, first out; a send doesn't wait. Sums are taken in the order of the devices, so that all
of a group get the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from partita.adapters.torch.groups import Groups, all_groups, groups_of
from partita.adapters.verify.baton import Baton, Wait
from partita.errors import PlanError
from partita.spacetime.program import Program

Stream = tuple[int, int, bool]


class World:
    """All wires of a program's devices, and the bytes that each device has sent: ``sent`` in messages, ``shared`` in
    collectives (what it gives to each, counted once)."""

    def __init__(self, program: Program, baton: Baton):
        self.program = program
        self.baton = baton
        self.streams: dict[Stream, deque[Tensor]] = {}
        self.sent = dict.fromkeys(program.places, 0)
        self.shared = dict.fromkeys(program.places, 0)
        self.meetings = {members: Meeting(members) for members in all_groups(program)}
        self.everyone = Meeting(tuple(sorted(program.places)))

    def groups(self, device: int) -> Groups:
        """One device's groups and its line."""

        def group(members: tuple[int, ...]) -> VirtualGroup | None:
            there = self.meetings.get(members)
            return VirtualGroup(self, there, device) if there is not None and device in members else None

        everyone = VirtualGroup(self, self.everyone, device)
        return groups_of(self.program, device, group, everyone, VirtualLine(self, device))

    def copy(self, tensor: Tensor) -> Tensor:
        """What arrives of a tensor: its values in memory of its own, without its past."""
        return tensor.detach().clone()


@dataclass
class Meeting:
    """Where a group meets. ``rounds[i]`` is its i-th collective: what it is and what each has brought."""

    members: tuple[int, ...]
    rounds: dict[int, dict[int, tuple[str, Any]]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)


class VirtualGroup:
    """A device's side of a group."""

    def __init__(self, world: World, meeting: Meeting, device: int):
        self.world, self.meeting, self.device = world, meeting, device
        self.rank, self.size = meeting.members.index(device), len(meeting.members)

    def sum(self, tensor: Tensor) -> None:
        found = self._tensors("sum", tensor)
        total = found[0].clone()
        for other in found[1:]:
            total += other
        tensor.copy_(total)

    def largest(self, tensor: Tensor) -> None:
        found = self._tensors("maximum", tensor)
        tensor.copy_(torch.stack(found).amax(0))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        return [self.world.copy(other) for other in self._tensors("gather", tensor)]

    def scatter_sum(self, parts: Sequence[Tensor]) -> Tensor:
        found = self._parts("scatter sum", parts)
        total = found[0]
        for other in found[1:]:
            total = total + other
        return total

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return self._parts("exchange", parts)

    def objects(self, mine: Any) -> list[Any]:
        return self.come("objects", mine)

    def _tensors(self, what: str, tensor: Tensor) -> list[Tensor]:
        self.world.shared[self.device] += _bytes(tensor)
        return self.come(f"{what} of {_said(tensor)}", self.world.copy(tensor))

    def _parts(self, what: str, parts: Sequence[Tensor]) -> list[Tensor]:
        self.world.shared[self.device] += sum(map(_bytes, parts))
        said = f"{what} of {len(parts)} parts {_said(parts[0])}"
        everyones: list[list[Tensor]] = self.come(said, [self.world.copy(part) for part in parts])
        return [self.world.copy(theirs[self.rank]) for theirs in everyones]

    def come(self, what: str, mine: Any) -> list[Any]:
        """What each of the group has brought to this collective, in order, once all are there.

        PlanError where they come for different ones.
        """
        meeting, device = self.meeting, self.device
        number = meeting.count.get(device, 0)
        meeting.count[device] = number + 1
        there = meeting.rounds.setdefault(number, {})
        there[device] = (what, mine)
        self.world.baton.until(
            device, Wait(lambda: len(there) == self.size, lambda: [d for d in meeting.members if d not in there])
        )
        kinds = {other: there[other][0] for other in meeting.members}
        if len(set(kinds.values())) > 1:
            other = next(other for other, kind in kinds.items() if kind != what)
            raise PlanError(
                f"the devices {list(meeting.members)} share collectives and must keep one order: device {device} comes "
                f"with {what}, device {other} with {kinds[other]}"
            )
        found = [there[other][1] for other in meeting.members]
        meeting.left[number] = meeting.left.get(number, 0) + 1
        if meeting.left[number] == self.size:
            del meeting.rounds[number], meeting.left[number]
        return found


class Sent:
    """A message that is on its way: nothing to wait for."""

    def wait(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True


@dataclass(frozen=True)
class Received:
    """A receive that is posted; the messages of a stream are taken in the order in which they are waited for."""

    take: Callable[[], None]

    def wait(self) -> None:
        self.take()

    def is_completed(self) -> bool:
        return False


class VirtualLine:
    """A device's messages to and from others."""

    def __init__(self, world: World, device: int):
        self.world, self.device = world, device
        self.posted: dict[Stream, deque[object]] = {}

    def send(self, tensor: Tensor, device: int, backwards: bool) -> Sent:
        self.world.sent[self.device] += _bytes(tensor)
        self.world.streams.setdefault((self.device, device, backwards), deque()).append(self.world.copy(tensor))
        return Sent()

    def receive(self, buffer: Tensor, device: int, backwards: bool) -> Received:
        stream = (device, self.device, backwards)
        messages = self.world.streams.setdefault(stream, deque())
        posted = self.posted.setdefault(stream, deque())
        ticket = object()
        posted.append(ticket)

        def take() -> None:
            # Earlier receives of the stream take earlier messages, whichever is waited for first.
            place = posted.index(ticket)
            self.world.baton.until(self.device, Wait(lambda: len(messages) > place, lambda: [device]))
            message = messages[place]
            del messages[place], posted[place]
            if message.shape != buffer.shape or message.dtype != buffer.dtype:
                raise PlanError(
                    f"device {self.device} receives {_said(buffer)} from device {device}, which sent {_said(message)}"
                )
            buffer.copy_(message)

        return Received(take)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _said(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
