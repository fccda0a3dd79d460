"""One baton for all virtual devices: only who holds it computes, and it is handed on where a device waits.

So a run is the same each time, and where all wait nobody ever will go on: that is seen at once and said, by who waits
for whom. Devices are threads, because the code of a rank waits in the middle of a backward pass; they never run at the
same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from partita.errors import PlanError


@dataclass(frozen=True)
class Wait:
    """What a device waits for: ``ready`` says whether it is there, ``for_whom`` the devices that must bring it."""

    ready: Callable[[], bool]
    for_whom: Callable[[], Sequence[int]]


class Stopped(BaseException):
    """Raised in the other devices when one has failed. No Exception: nobody on the way takes it for an error."""


class Baton:
    """The devices take turns in the order of their numbers, each as far as it gets.

    ``doing`` is said of a device in the report of a standstill.
    """

    def __init__(self, devices: Iterable[int], doing: Callable[[int], str]):
        self.devices = sorted(devices)
        self.doing = doing
        self.failure: tuple[int | None, BaseException] | None = None
        self._turn = {device: threading.Semaphore(0) for device in self.devices}
        self._waiting: dict[int, Wait] = {device: Wait(lambda: True, tuple) for device in self.devices}
        self._ended: set[int] = set()

    def start(self) -> None:
        """Hand the baton to the first device, once all have been started."""
        self._hand_on(self.devices[-1])

    def begin(self, device: int) -> None:
        """Wait for the baton for the first time."""
        self._take(device)

    def until(self, device: int, wait: Wait) -> None:
        """Go on when ``wait`` is over. Stopped where another device failed, or all wait."""
        if wait.ready():
            return
        self._waiting[device] = wait
        self._hand_on(device)
        self._take(device)

    def end(self, device: int) -> None:
        """The device has done all it had to do."""
        self._ended.add(device)
        self._hand_on(device)

    def fail(self, device: int | None, error: BaseException) -> None:
        """Stop all; the first failure is the one that counts."""
        self.failure = self.failure or (device, error)
        for turn in self._turn.values():
            turn.release()

    def _take(self, device: int) -> None:
        self._turn[device].acquire()
        if self.failure is not None:
            raise Stopped
        del self._waiting[device]

    def _hand_on(self, device: int) -> None:
        if self.failure is not None:
            return
        place = self.devices.index(device) + 1
        for other in (*self.devices[place:], *self.devices[:place]):
            if other in self._waiting and self._waiting[other].ready():
                self._turn[other].release()
                return
        if len(self._ended) < len(self.devices):
            self.fail(None, PlanError(self._standstill()))

    def _standstill(self) -> str:
        clauses = []
        for device, wait in sorted(self._waiting.items()):
            others = [f"{o}, whose queue has ended" if o in self._ended else str(o) for o in wait.for_whom()]
            clauses.append(f"device {device} waits in {self.doing(device)} for device {' and '.join(others)}")
        return "the devices wait for each other for ever: " + "; ".join(clauses)
