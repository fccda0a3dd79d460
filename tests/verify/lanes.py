"""Random programs whose devices serve several stages, share turns or have weight turns; their queues on processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import torch

from partita.adapters.torch.groups import make_groups
from partita.graph import Graph
from partita.plan import Order
from partita.schedules import Turn
from partita.spacetime.communication import ahead, begins_with
from partita.spacetime.preserve import Version, preserve
from partita.spacetime.program import Program, Share
from partita.spacetime.schedule import assign, order
from partita.spacetime.transform import BlockCode, StageCode, transform
from tests.simulate.pipelines import chain, tensor
from tests.spacetime.queues import shuffled, wait_cycle

SCHEDULES = ("interleaved", "interlaced", "zb-h1", "3f1b")


def lanes_of(schedule: str, lanes: int) -> tuple[list[list[int]], dict[str, int]]:
    """The lanes of each stage, and the schedule's arguments."""
    if schedule == "interleaved":
        return [[stage % lanes] for stage in range(2 * lanes)], {"lanes": lanes}
    if schedule == "interlaced":
        everyone = list(range(lanes))
        return [everyone, *([lane] for lane in range(lanes)), everyone], {"extra": lanes - 1}
    if schedule == "3f1b":
        return [[stage % lanes] for stage in range(3 * lanes)], {"passes": 3}
    return [[stage] for stage in range(lanes)], {}


def model(schedule: str, stages: int, skips: Sequence[tuple[int, int]], tied: bool) -> Graph:
    """A chain; of 3F1B only the last of three passes has gradients."""
    graph = chain(stages, skips, tied)
    if schedule != "3f1b":
        return graph
    early = {f"x{index + 1}" for index in range(stages * 2 // 3)}
    tensors = tuple(replace(t, gradient=False) if t.name in early else t for t in graph.tensors)
    return replace(graph, tensors=tensors)


def moved(random: Random, turns: Sequence[Turn]) -> list[Turn]:
    """Some turns a few places earlier or later."""
    found = list(turns)
    for _ in range(random.randint(0, 3)):
        place = random.randrange(len(found))
        found.insert(max(0, place + random.choice([-2, -1, 1, 2])), found.pop(place))
    return found


def any_lanes(random: Random, schedule: str, *, lanes: int = 0, changed: bool = True) -> tuple[Graph, Program]:
    """A program of a schedule; ``changed``: with other orders, of which many can't be and some stand still."""
    lanes = lanes or random.randint(2, 3)
    micro_batches, dp = lanes * random.randint(1, 2), random.choice([1, 1, 2])
    of_stage, arguments = lanes_of(schedule, lanes)
    stages = len(of_stage)
    pairs = [(i, j) for i in range(stages) for j in range(i + 2, stages)]
    # The ends of an interlaced pipeline are on all devices: what is tied there never crosses.
    tied = random.random() < 0.4 and (schedule != "3f1b")
    graph = model(schedule, stages, [pair for pair in pairs if random.random() < 0.15], tied)
    pieces = transform(graph, [StageCode((BlockCode(f"b{stage}", (), "none"),), ()) for stage in range(stages)])
    devices_of = tuple(tuple(copy * lanes + lane for copy in range(dp) for lane in on) for on in of_stage)
    widths = [len(on) for on in of_stage]
    places = assign(devices_of, [dp] * stages, widths)
    turns = order(Order(schedule, stages, micro_batches, arguments), places, [micro_batches] * stages, ())
    if changed and random.random() < 0.6:
        of_lane = {lane: moved(random, turns[lane]) if random.random() < 0.5 else turns[lane] for lane in range(lanes)}
        turns = {device: of_lane[device % lanes] for device in turns}
    queues = preserve(Version(graph, pieces), places, devices_of, turns)
    zero = {name: random.choice([0, 0, 1, 2, 3]) for name in graph.parameter_users}
    axes = tuple(map(tensor, widths))
    program = Program(
        pieces, queues, places, devices_of, (Share(dp, micro_batches, 1),) * stages, axes, zero, graph.loss,
        {"w0": (0, stages - 1)} if tied else {},
    )  # fmt: skip
    if changed and random.random() < 0.6:
        program = shuffled(random, program)
    cyclic = wait_cycle(random, program) if changed and random.random() < 0.3 else None
    return graph, cyclic[0] if cyclic else program


def on_processes(programs: Sequence[Program]) -> list[int]:
    """What a rank does: take its queue of each program to its end, with nothing but one number in every message.

    A collective is a sum over those who share it; the tasks that it went through are returned.
    """
    import torch.distributed as dist

    from partita.adapters.torch.wires import ProcessGroup

    rank, done = dist.get_rank(), []
    for program in programs:
        groups = make_groups(program, torch.device("cpu"))
        shared = {members: dist.new_group(list(members)) for members in meetings(program)}
        queue, posted, waiting, pending = program.queues.get(rank, ()), 0, {}, []
        for position, task in enumerate(queue):
            for place in range(posted, ahead(queue, position)):
                later = queue[place]
                if later.kind == "receive" and later.transfer is not None and later.peer is not None:
                    buffer = torch.empty(1)
                    waiting[place] = (groups.line.receive(buffer, later.peer, later.transfer.backwards), buffer)
            posted = max(posted, ahead(queue, position))
            if task.transfer is not None and task.peer is not None:
                # The two sides of a part count their turns apart.
                which = task.transfer.samples[0] if task.transfer.samples else task.micro
                number = torch.tensor([float(-1 if which is None else which)])
                if task.kind == "send":
                    pending.append((groups.line.send(number, task.peer, task.transfer.backwards), number))
                else:
                    work, buffer = waiting.pop(position)
                    work.wait()
                    assert buffer.item() == number.item(), f"{task} came with micro-batch {buffer.item()}"
                continue
            members = begins_with(program, rank, task.stage, task.kind)
            if len(members) > 1:
                number = torch.tensor([1.0])
                ProcessGroup(shared[members]).sum(number)
                assert number.item() == len(members)
        for work, _ in pending:
            work.wait()
        done.append(len(queue))
    return done


def meetings(program: Program) -> list[tuple[int, ...]]:
    """The devices that take some task together, each group once, in an order that all ranks find."""
    found = {
        begins_with(program, device, task.stage, task.kind)
        for device, queue in program.queues.items()
        for task in queue
        if task.transfer is None
    }
    return sorted(members for members in found if len(members) > 1)
