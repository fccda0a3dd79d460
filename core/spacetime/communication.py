"""The communication model that all queues count on: the runtime keeps it, the simulator times it, the proof trusts it.

A device takes the tasks of its queue one after another. A send doesn't wait. Receives are posted ahead of the task that
waits for them. From one device to another, values are one stream and gradients another, each in order. Devices that
share collectives carry out the tasks that hold them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from partita.spacetime.program import Program, Task


def ahead(queue: Sequence[Task], index: int) -> int:
    """Where the tasks end whose receives are posted when task ``index`` begins: after the second turn from there.

    No further: what is posted has its memory, and a schedule bounds how many micro-batches a device holds.
    """
    turns = (place for place in range(index, len(queue)) if queue[place].kind in ("forward", "backward"))
    return next(islice(turns, 1, None), len(queue) - 1) + 1


def begins_with(program: Program, device: int, kind: str) -> tuple[int, ...]:
    """Devices that begin a task together with this one, itself among them: those of its collectives.

    Tensor parallelism has collectives in every turn, ZeRO 2 in the backward turns, ZeRO 3 in both.
    """
    stage = program.places[device].stage
    data = program.data_group(device)
    if kind == "reduce":
        return data
    if program.zero < (2 if kind == "backward" else 3) or len(data) == 1:
        return program.tensor_group(device)
    return data if program.tp[stage] == 1 else program.devices_of[stage]
