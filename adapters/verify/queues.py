"""Run a program's queues with nothing in them: the sends, receives and meetings alone, without a model.

It shares nothing with the proof of order but the program and the communication model, and so can say whether the two
agree.
"""

from __future__ import annotations

import torch

from partita.adapters.torch.groups import Groups
from partita.adapters.verify.devices import Cast
from partita.adapters.verify.wires import Meeting, VirtualGroup
from partita.errors import PlanError
from partita.spacetime.communication import TOGETHER, ahead, begins_with
from partita.spacetime.program import Program
from partita.spacetime.prove_order import named


def run_queues(program: Program) -> None:
    """Take every device through its queue. PlanError where they wait for each other, or where a message or a
    collective is not the one that is expected."""
    cast = Cast(program)
    # By stream, what the messages are: they are empty.
    names: dict[tuple[int, int, bool], list[str]] = {}
    taken: dict[tuple[int, int, bool], int] = {}
    meetings: dict[tuple[int, ...], Meeting] = {}

    def part(device: int, groups: Groups) -> None:
        queue, posted, waiting = program.queues[device], 0, {}
        for position, task in enumerate(queue):
            cast.now[device] = task
            for place in range(posted, ahead(queue, position)):
                later = queue[place]
                if later.kind == "receive":
                    assert later.transfer is not None
                    assert later.peer is not None
                    waiting[place] = groups.line.receive(torch.empty(0), later.peer, later.transfer.backwards)
            posted = max(posted, ahead(queue, position))
            if task.transfer is not None and task.peer is not None:
                back, key = task.transfer.backwards, task.transfer.key(task.micro)
                if task.kind == "send":
                    names.setdefault((device, task.peer, back), []).append(key)
                    groups.line.send(torch.empty(0), task.peer, back)
                    continue
                waiting.pop(position).wait()
                stream = (task.peer, device, back)
                found = names[stream][taken.get(stream, 0)]
                taken[stream] = taken.get(stream, 0) + 1
                if found != key:
                    raise PlanError(f'it expects "{key}" and "{found}" comes')
            elif task.kind in TOGETHER:
                members = begins_with(program, device, task.stage, task.kind)
                if len(members) > 1:
                    meeting = meetings.setdefault(members, Meeting(members))
                    VirtualGroup(cast.world, meeting, device).come(f"{named(task)} of stage {task.stage}", None)

    cast.play(part)
