"""Queues run without a clock, any device that can move moving next, and made at random.

The run shares nothing with the proof but the program: who must meet and how far receives are posted are the plain
simulation's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from partita.graph import Graph
from partita.schedules import Turn
from partita.spacetime.preserve import Version, preserve
from partita.spacetime.program import Program, Share, Task
from partita.spacetime.schedule import assign
from partita.spacetime.transform import BlockCode, StageCode, transform
from tests.simulate.brute import partners, posted_until
from tests.simulate.pipelines import chain, tensor


def stands_still(program: Program, random: Random) -> dict[int, int] | None:
    """The positions at which the devices wait for ever, or None when every queue comes to its end."""
    queues = program.queues
    position = dict.fromkeys(queues, 0)
    posted = dict.fromkeys(queues, 0)
    under_way: dict[object, list[str]] = {}
    receivers: dict[object, list[tuple[int, str]]] = {}
    arrived: set[tuple[int, int]] = set()

    def move(device: int) -> bool:
        queue, here = queues[device], position[device]
        if here == len(queue):
            return False
        until = posted_until(queue, here)
        for place in range(posted[device], until):
            if queue[place].kind == "receive":
                edge = queue[place].transfer
                assert edge is not None
                stream = (queue[place].peer, device, edge.backwards)
                receivers.setdefault(stream, []).append((place, queue[place].writes[0]))
        posted[device] = max(posted[device], until)
        task = queue[here]
        if task.transfer is not None and task.kind == "send":
            under_way.setdefault((device, task.peer, task.transfer.backwards), []).append(task.transfer.key(task.micro))
        elif task.transfer is not None:
            stream = (task.peer, device, task.transfer.backwards)
            while under_way.get(stream) and receivers.get(stream):
                name, (place, wanted) = under_way[stream].pop(0), receivers[stream].pop(0)
                assert name == wanted, f"{name} where {wanted} is received"
                arrived.add((device, place))
            if (device, here) not in arrived:
                return False
        elif task.kind != "update":
            group = partners(program, device, task.kind)
            heads = [
                queues[other][position[other]] if position[other] < len(queues[other]) else None for other in group
            ]
            if any(head is None or (head.kind, head.micro) != (task.kind, task.micro) for head in heads):
                return False
            for other in group:
                if other != device:
                    position[other] += 1
        position[device] += 1
        return True

    while True:
        devices = list(queues)
        random.shuffle(devices)
        if not any(move(device) for device in devices):
            break
    return position if any(position[d] < len(queue) for d, queue in queues.items()) else None


def any_turns(random: Random, stage: int, micro_batches: int) -> list[Turn]:
    """Forwards in order, backwards in order, and any of the ways to lay one between the other."""
    turns, forwards, backwards = [], 0, 0
    while backwards < micro_batches:
        if forwards < micro_batches and (backwards == forwards or random.random() < 0.6):
            turns.append(Turn(stage, "forward", forwards))
            forwards += 1
        else:
            turns.append(Turn(stage, "backward", backwards))
            backwards += 1
    return turns


def any_program(random: Random) -> tuple[Graph, Program]:
    """A chain whose stages each have an order of their own: it may stand still."""
    stages, micro_batches = random.randint(1, 4), random.randint(1, 4)
    dp, tp = random.choice([1, 1, 2]), random.choice([1, 1, 2])
    pairs = [(i, j) for i in range(stages) for j in range(i + 2, stages)]
    tied = stages > 1 and random.random() < 0.5
    graph = chain(stages, [pair for pair in pairs if random.random() < 0.5], tied)
    pieces = transform(graph, [StageCode((BlockCode(f"b{stage}", (), "none"),), ()) for stage in range(stages)])
    each = dp * tp
    devices_of = tuple(tuple(range(stage * each, (stage + 1) * each)) for stage in range(stages))
    places = assign(devices_of, [dp] * stages, [tp] * stages)
    of_stage = [any_turns(random, stage, micro_batches) for stage in range(stages)]
    of_device = {device: of_stage[place.stage] for device, (place,) in places.items()}
    queues = preserve(Version(graph, pieces), places, devices_of, of_device)
    return graph, Program(
        pieces, queues, places, devices_of, (Share(dp, micro_batches, 1),) * stages, (tensor(tp),) * stages,
        {name: random.randint(0, 3) for name in graph.parameter_users}, graph.loss,
        {"w0": (0, stages - 1)} if tied else {},
    )  # fmt: skip


def shuffled(random: Random, program: Program) -> Program:
    """Some tasks of one device, or of each device of a stage, some places earlier or later."""
    queues = dict(program.queues)
    devices: Sequence[int] = random.choice(program.devices_of)
    if random.random() < 0.3:
        devices = [random.choice(devices)]
    moves = [(random.random(), random.choice([-2, -1, 1, 2, 3])) for _ in range(random.randint(0, 3))]
    for device in devices:
        queue = list(queues[device])
        for at, by in moves:
            place = int(at * len(queue))
            queue.insert(max(0, place + by), queue.pop(place))
        queues[device] = tuple(queue)
    return replace(program, queues=queues)


def wait_cycle(random: Random, program: Program) -> tuple[Program, int, int] | None:
    """A value sent only after the gradient that comes back from it: the two devices then wait for each other.

    All that the device sends to the other between the two keeps its order, and nothing is used before it is there.
    """
    found = [
        (device, place, back)
        for device, queue in program.queues.items()
        for place, task in enumerate(queue)
        if task.kind == "send" and task.transfer is not None and task.transfer.what == "value"
        for back in range(place + 1, len(queue))
        if _answers(queue[back], task)
    ]
    if not found:
        return None
    device, place, back = random.choice(found)
    queue = program.queues[device]
    peer = queue[place].peer
    assert peer is not None

    def late(task: Task) -> bool:
        return task.kind == "send" and task.peer == peer and task.transfer is not None and not task.transfer.backwards

    between = queue[place : back + 1]
    moved = (*(task for task in between if not late(task)), *(task for task in between if late(task)))
    queues = {**program.queues, device: (*queue[:place], *moved, *queue[back + 1 :])}
    return replace(program, queues=queues), device, peer


def _answers(receive: Task, send: Task) -> bool:
    """Whether it receives the gradient of the value that was sent."""
    back, value = receive.transfer, send.transfer
    return (
        receive.kind == "receive" and back is not None and value is not None and back.what == "gradient"
        and (back.tensor, back.source, receive.micro) == (value.tensor, value.target, send.micro)
    )  # fmt: skip
