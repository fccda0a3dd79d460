"""Run the same function on every virtual device of a program, one thread a device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from partita.adapters.torch.groups import Groups
from partita.adapters.verify.baton import Baton, Stopped
from partita.adapters.verify.wires import World
from partita.errors import PartitaError, PlanError
from partita.spacetime.program import Program, Task
from partita.spacetime.prove_order import named

T = TypeVar("T")


class Cast:
    """The devices of a program and their wires. ``now`` is what each is doing: its runtime tells it."""

    def __init__(self, program: Program):
        self.now: dict[int, Task] = {}
        self.baton = Baton(program.places, self.doing)
        self.world = World(program, self.baton)

    def doing(self, device: int) -> str:
        """What a device is doing, in words."""
        return named(self.now[device]) if device in self.now else "the beginning of a step"

    def play(self, part: Callable[[int, Groups], T]) -> dict[int, T]:
        """What ``part(device, groups)`` returns on each device; once for each cast.

        PlanError where all wait, or where something goes wrong in a task: with the device and the task. An error of
        ours from outside tasks is raised as it is.
        """
        results: dict[int, T] = {}

        def run(device: int) -> None:
            try:
                self.baton.begin(device)
                results[device] = part(device, self.world.groups(device))
                self.now.pop(device, None)
                self.baton.end(device)
            except Stopped:
                pass
            except BaseException as error:
                self.baton.fail(device, error)

        threads = [threading.Thread(target=run, args=(device,), daemon=True) for device in self.baton.devices]
        for thread in threads:
            thread.start()
        self.baton.start()
        for thread in threads:
            thread.join()
        if self.baton.failure is not None:
            self._raise(*self.baton.failure)
        return dict(sorted(results.items()))

    def _raise(self, device: int | None, error: BaseException) -> None:
        if not isinstance(error, Exception) or device is None:
            raise error
        if isinstance(error, PartitaError) and device not in self.now:
            raise error
        what = str(error) if isinstance(error, PartitaError) else f"{type(error).__name__}: {error}"
        raise PlanError(f"device {device}, in {self.doing(device)}: {what}") from error
