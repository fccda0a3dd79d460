"""What came out of a simulation: the time of every task, and what follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from partita.plan import MemoryBytes
from partita.simulate.costs import Costs
from partita.simulate.engine import Timing
from partita.simulate.memory import Moment, Peak, held_by, peak, timeline
from partita.spacetime.program import TURNS, Program, Task


@dataclass(frozen=True)
class Use:
    """A device's step: ``compute``, ``collective`` and ``waiting`` seconds add up to it.

    ``sending_seconds`` its messages are on their way, beside all that. ``sent_bytes`` leave it in messages,
    ``collective_bytes`` in collectives.
    """

    compute_seconds: float
    collective_seconds: float
    waiting_seconds: float
    sending_seconds: float
    sent_bytes: float
    collective_bytes: float

    @property
    def busy_seconds(self) -> float:
        return self.compute_seconds + self.collective_seconds

    @property
    def moved_bytes(self) -> float:
        return self.sent_bytes + self.collective_bytes


@dataclass(frozen=True)
class Simulation:
    """One step of a program. ``timings`` by device; the figures of devices are computed when they are asked for."""

    program: Program
    costs: Costs
    timings: Mapping[int, Timing]

    @cached_property
    def step_seconds(self) -> float:
        """Until the last task and the last message have ended."""
        return max((max(timing.ends) for timing in self.timings.values() if timing.ends), default=0.0)

    @cached_property
    def pipeline_seconds(self) -> float:
        """Until the last turn has ended."""
        return max((end for device in self.timings for task, _, end in self.intervals(device) if task.kind in TURNS))

    @cached_property
    def bubble_fraction(self) -> float:
        """The part of the pipeline's time in which devices run no turn, over all devices."""
        seconds = self.costs.seconds
        turns = fsum(
            count * seconds[stage, kind] for found in self._counts.values() for (stage, kind), count in found.items()
            if kind in TURNS
        )  # fmt: skip
        whole = len(self.timings) * self.pipeline_seconds
        return max(0.0, 1 - turns / whole) if whole else 0.0

    @cached_property
    def use(self) -> dict[int, Use]:
        """By device."""
        return {device: self._use(device) for device in self.timings}

    @cached_property
    def peaks(self) -> dict[int, Peak]:
        """By device: the most that it holds."""
        return {device: peak(self.memory(device), self.held(device)) for device in self.timings}

    def held(self, device: int) -> MemoryBytes:
        """What the device holds all the time, of all stages that it serves."""
        return held_by([self.costs.memory[place.stage] for place in self.program.places[device]])

    def intervals(self, device: int) -> Iterator[tuple[Task, float, float]]:
        """The device's tasks with their first and last second; of sends and receives those of the message."""
        timing = self.timings[device]
        return zip(self.program.queues[device], timing.starts, timing.ends, strict=True)

    def memory(self, device: int) -> Iterator[Moment]:
        """The device's memory that changes, moment after moment."""
        queue, timing = self.program.queues[device], self.timings[device]
        return timeline(queue, timing, self.costs.memory, self.costs.size_bytes)

    @cached_property
    def _counts(self) -> dict[int, Counter[tuple[int, str]]]:
        return {
            device: Counter((task.stage, task.kind) for task in queue if task.transfer is None)
            for device, queue in self.program.queues.items()
        }

    def _use(self, device: int) -> Use:
        costs, counts = self.costs, self._counts[device]
        busy = fsum(count * costs.seconds[key] for key, count in counts.items())
        collective = fsum(count * costs.collective_seconds[key] for key, count in counts.items())
        sending, sent = 0.0, 0.0
        for task, start, end in self.intervals(device):
            if task.kind == "send":
                assert task.transfer is not None
                sending += end - start
                sent += costs.size_bytes(task.transfer)
        return Use(
            compute_seconds=busy - collective,
            collective_seconds=collective,
            waiting_seconds=max(0.0, self.step_seconds - busy),
            sending_seconds=sending,
            sent_bytes=sent,
            collective_bytes=fsum(count * costs.collective_bytes[key] for key, count in counts.items()),
        )
