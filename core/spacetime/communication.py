"""The communication model that all queues count on: the runtime keeps it, the simulator times it, the proof trusts it.

A device takes the tasks of its queue one after another. A send doesn't wait. Receives are posted ahead of the task that
waits for them. From one device to another, values are one stream and gradients another, each in order. Devices that
share collectives carry out the tasks that hold them together. What crosses stages is whole on each device of a copy,
and comes from the device itself where that has it, else from one device of the copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from partita.spacetime.program import TURNS, Place, Program, Task, Transfer

Peers = Mapping[int, Sequence[int]]


class Meshes:
    """Who talks to whom across stages, from the devices of each and their places."""

    def __init__(self, places: Mapping[int, tuple[Place, ...]], devices_of: Sequence[Sequence[int]]):
        self.places, self.devices_of = places, devices_of
        self._place = {(device, place.stage): place for device, served in places.items() for place in served}
        self._widths: dict[int, int] = {}
        # Asked for every task, and the same for each micro-batch.
        self._readers: dict[tuple[int, int, int], tuple[int, ...]] = {}
        # Asked for every device and parameter.
        self._shared: dict[tuple[int, int, int], tuple[Peers, Peers]] = {}

    def stages(self, device: int) -> list[int]:
        """The stages that a device serves."""
        return [place.stage for place in self.places[device]]

    def place(self, device: int, stage: int) -> Place:
        """The device's place in a stage that it serves."""
        return self._place[device, stage]

    def copy(self, stage: int, data: int) -> Sequence[int]:
        """The devices of one data-parallel copy of a stage."""
        if stage not in self._widths:
            self._widths[stage] = 1 + max(self.place(device, stage).tensor for device in self.devices_of[stage])
        width = self._widths[stage]
        return self.devices_of[stage][data * width : (data + 1) * width]

    def source(self, device: int, stage: int, other: int) -> int:
        """The device of the stage ``other`` from which a device of ``stage`` has what crosses: itself, if it can."""
        place = self.place(device, stage)
        return sender(self.copy(other, place.data), device, place.tensor)

    def readers(self, device: int, stage: int, other: int) -> tuple[int, ...]:
        """The devices of ``other`` that have from this device of ``stage`` what crosses; itself among them, if so."""
        key = (device, stage, other)
        if key not in self._readers:
            copy = self.copy(other, self.place(device, stage).data)
            self._readers[key] = tuple(d for d in copy if self.source(d, other, stage) == device)
        return self._readers[key]

    def copies(self, stage: int) -> int:
        """How many data-parallel copies a stage has."""
        return len(self.devices_of[stage]) // len(self.copy(stage, 0))

    def shared(self, edge: Transfer) -> tuple[Peers, Peers]:
        """Who sends a parameter that two stages share, or its gradient: by sender those who get it, and the converse.

        Each copy of the other stage belongs to one of the owner's. There each device gets what one of the sending
        copy has: the same part, at the same place, or all of it where the copies are of unlike width. A device that is
        in both stages has one parameter: nothing is sent.
        """
        owner, other = (edge.target, edge.source) if edge.backwards else (edge.source, edge.target)
        key = (edge.source, edge.target, owner)
        if key not in self._shared:
            both = {*self.devices_of[owner]} & {*self.devices_of[other]}
            readers: dict[int, list[int]] = {}
            senders: dict[int, list[int]] = {}
            copies, of_owner = self.copies(other), self.copies(owner)
            for data in range(copies):
                ours, theirs = self.copy(owner, data * of_owner // copies), self.copy(other, data)
                sending, getting = (theirs, ours) if edge.backwards else (ours, theirs)
                for at, device in enumerate(getting):
                    if both.isdisjoint((source := sending[at % len(sending)], device)):
                        readers.setdefault(source, []).append(device)
                        senders.setdefault(device, []).append(source)
            self._shared[key] = readers, senders
        return self._shared[key]


def sender(copy: Sequence[int], device: int, number: int) -> int:
    """Who of the equal devices of a copy sends to its reader of that number: itself, or in turn, so that all do."""
    return device if device in copy else copy[number % len(copy)]


def ahead(queue: Sequence[Task], index: int) -> int:
    """Where the tasks end whose receives are posted when task ``index`` begins: after the second turn from there.

    No further: what is posted has its memory, and a schedule bounds how many micro-batches a device holds.
    """
    turns = (place for place in range(index, len(queue)) if queue[place].kind in TURNS)
    return next(islice(turns, 1, None), len(queue) - 1) + 1


# The tasks in which devices can wait for each other.
TOGETHER = ("forward", "backward", "weight", "reduce", "update")


def begins_with(program: Program, device: int, stage: int, kind: str) -> tuple[int, ...]:
    """Devices that begin a task of a stage together with this one, itself among them: those of its collectives.

    Parallelism inside a copy has collectives in forward and backward turns, ZeRO 2 in the backward turns, ZeRO 3 in
    both; either adds up what a weight turn makes. ZeRO 1 and 2 gather parameters after the update. Gradients are added
    up over all devices of a stage that hold the same part of a parameter.
    """
    data = program.data_group(device, stage)
    if kind == "reduce":
        return program.devices_of[stage] if program.pieces[stage].partial else data
    if kind == "update":
        return data if program.zeros(stage, copies=False) & {1, 2} else (device,)
    divided = bool(program.zeros(stage) & ({3} if kind == "forward" else {2, 3}))
    if kind == "weight":
        return data if divided else (device,)
    if not divided or len(data) == 1:
        return program.tensor_group(device, stage)
    return data if program.widths[stage] == 1 else program.devices_of[stage]
