"""What breaks plans of the library, in the queues: stages of one device, weight turns, turns that all devices share.

Each is one change to a program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from partita.graph import Graph
from partita.spacetime.program import Program, Task, Transfer, put_off_by, saved
from tests.spacetime.programs import Broken, Mutant, with_queue, with_tasks


def _with_tasks_of(found: Program, device: int, tasks: Iterable[Task]) -> Program:
    return replace(found, queues={**found.queues, device: tuple(tasks)})


def one_average_left_out(graph: Graph, found: Program) -> Broken:
    device = max(found.queues)
    stage = found.places[device][-1].stage
    broken = with_tasks(found, lambda d, t: [] if (d, t.kind, t.stage) == (device, "reduce", stage) else [t])
    return graph, broken, (f"device {device}", "reduce is missing", "never added up")


def averaged_for_each_micro_batch(graph: Graph, found: Program) -> Broken:
    """Before the last average another one, for micro-batch 0."""
    device = max(found.queues)

    def change(tasks: list[Task]) -> list[Task]:
        place = max(i for i, t in enumerate(tasks) if t.kind == "reduce")
        return [*tasks[:place], replace(tasks[place], micro=0), *tasks[place:]]

    return graph, with_queue(found, device, change), (f"device {device}", "reduce", "for one micro-batch")


def averages_in_two_orders(graph: Graph, found: Program) -> Broken:
    """One of those who share several stages averages them the other way round."""
    device = max(found.queues)
    queue = found.queues[device]
    averages = [task for task in queue if task.kind == "reduce"]
    shared = [t for t in averages if len(found.data_group(device, t.stage)) > 1 or found.pieces[t.stage].partial]
    if len(shared) < 2:
        return None
    places = [i for i, task in enumerate(queue) if task.kind == "reduce"]

    def change(tasks: list[Task]) -> list[Task]:
        for place, task in zip(places, reversed(averages), strict=True):
            tasks[place] = task
        return tasks

    return graph, with_queue(found, device, change), ("share collectives|deadlocks", f"device {device}", "reduce")


def sent_to_itself(graph: Graph, found: Program) -> Broken:
    """Stages of one device hold a shared parameter together, and one of them sends the other its gradient."""
    for name, (owner, *copies) in found.shared.items():
        for copy in copies:
            device = next((d for d in found.devices_of[owner] if d in found.devices_of[copy]), None)
            if device is None:
                continue
            tensor, shard = graph.tensor[name], found.pieces[owner].parameters[name]
            rows = shard.padded // shard.pieces if shard else tensor.shape[0]
            shape, size = (rows, *tensor.shape[1:]), tensor.bytes // tensor.shape[0] * rows
            edge = Transfer(name, "parameter_gradient", copy, owner, shape, tensor.dtype, size)
            task = Task("send", copy, None, edge, peer=device, reads=(edge.key(None),))

            def change(tasks: list[Task], task: Task = task) -> list[Task]:
                place = next(i for i, t in enumerate(tasks) if t.kind == "reduce")
                return [*tasks[:place], task, *tasks[place:]]

            return graph, with_queue(found, device, change), (f"device {device}", name, "has it itself")
    return None


def _swapped(found: Program, device: int, one: int, two: int) -> Program:
    def change(tasks: list[Task]) -> list[Task]:
        tasks[one], tasks[two] = tasks[two], tasks[one]
        return tasks

    return with_queue(found, device, change)


def sent_after_the_answer(graph: Graph, found: Program) -> Broken:
    """A value leaves only when its gradient has come back: sender and receiver wait for each other."""
    for device, queue in sorted(found.queues.items()):
        for place, send in enumerate(queue):
            if send.kind != "send" or send.transfer is None or send.transfer.what != "value":
                continue
            ends = (send.transfer.tensor, send.transfer.target, send.micro)
            for back in range(place + 1, len(queue)):
                edge = queue[back].transfer
                answer = queue[back].kind == "receive" and edge is not None and edge.what == "gradient"
                if not answer or edge is None or (edge.tensor, edge.source, queue[back].micro) != ends:
                    continue
                moving = [
                    t for t in queue[place : back + 1]
                    if t.kind == "send" and t.peer == send.peer and t.transfer and not t.transfer.backwards
                ]  # fmt: skip
                rest = [t for t in queue[place : back + 1] if t not in moving]
                if {name for t in rest for name in t.frees}.intersection(name for t in moving for name in t.reads):
                    continue
                now = (*queue[:place], *rest, *moving, *queue[back + 1 :])
                broken = _with_tasks_of(found, device, now)
                return graph, broken, (f"the order deadlocks: device|device {device}", f'"{send.transfer.tensor}')
    return None


def shared_turns_in_two_orders(graph: Graph, found: Program) -> Broken:
    """One lane takes two forward turns that all devices share the other way round, with what they leave on the way."""
    device = max(found.queues)
    queue = found.queues[device]
    stage = found.places[device][0].stage
    if len(found.tensor_group(device, stage)) < 2:
        return None
    turns = [i for i, t in enumerate(queue) if (t.kind, t.stage) == ("forward", stage)]
    for one, two in zip(turns, turns[1:], strict=False):
        if two == one + 1:
            words = ("share collectives", f"micro-batch {queue[one].micro}", f"micro-batch {queue[two].micro}")
            return graph, _swapped(found, device, one, two), words
    return None


def shared_turn_put_off(graph: Graph, found: Program) -> Broken:
    """A lane takes part in a turn that all share only when it has what another lane makes after that turn.

    Shared turns between the two are put off with it, so that they keep their order.
    """
    for device, queue in sorted(found.queues.items()):
        for place, task in enumerate(queue):
            back = next((i for i in range(place + 1, len(queue)) if _gives(queue[i], task)), None)
            if back is None or not _shared(found, device, task):
                continue
            between = queue[place : back + 1]
            moving = [t for t in between if _shared(found, device, t)]
            rest = [t for t in between if t not in moving]
            if {name for t in moving for name in t.writes}.intersection(name for t in rest for name in t.reads):
                continue
            broken = _with_tasks_of(found, device, [*queue[:place], *rest, *moving, *queue[back + 1 :]])
            return graph, broken, (f"device {device} waits in receive", f"forward of micro-batch {task.micro}")
    return None


def _shared(found: Program, device: int, task: Task) -> bool:
    """Whether a turn is one that several devices take together."""
    return task.kind in ("forward", "backward") and len(found.tensor_group(device, task.stage)) > 1


def _gives(receive: Task, turn: Task) -> bool:
    """Whether a value of the turn's micro-batch comes from the next stage."""
    edge = receive.transfer
    came = receive.kind == "receive" and edge is not None and edge.what == "value"
    return came and edge is not None and (edge.source, receive.micro) == (turn.stage + 1, turn.micro)


def weight_before_backward(graph: Graph, found: Program) -> Broken:
    device = max(found.queues)
    queue = found.queues[device]
    weight = next((i for i, t in enumerate(queue) if t.kind == "weight"), None)
    if weight is None:
        return None
    micro, stage = queue[weight].micro, queue[weight].stage
    back = next(i for i, t in enumerate(queue) if (t.kind, t.micro, t.stage) == ("backward", micro, stage))
    put_off = put_off_by(stage, micro or 0)
    return graph, _swapped(found, device, back, weight), (f"device {device}", "weight", put_off)


def weight_left_out(graph: Graph, found: Program) -> Broken:
    device = max(found.queues)
    place = next((i for i, t in enumerate(found.queues[device]) if t.kind == "weight"), None)
    if place is None:
        return None
    micro = found.queues[device][place].micro
    broken = with_queue(found, device, lambda tasks: tasks[:place] + tasks[place + 1 :])
    return graph, broken, (f"device {device}", f"the weight of micro-batch {micro} is missing")


def all_weights_left_out(graph: Graph, found: Program) -> Broken:
    """No weight turns at all, and backward turns that still put their work off."""
    device = max(found.queues)
    if not any(t.kind == "weight" for t in found.queues[device]):
        return None
    broken = with_tasks(found, lambda d, t: [] if t.kind == "weight" and d == device else [t])
    return graph, broken, (f"device {device}", "put off by stage")


def weight_twice(graph: Graph, found: Program) -> Broken:
    device = max(found.queues)
    place = next((i for i, t in enumerate(found.queues[device]) if t.kind == "weight"), None)
    if place is None:
        return None
    broken = with_queue(found, device, lambda tasks: [*tasks[: place + 1], *tasks[place:]])
    return graph, broken, (f"device {device}", "weight of micro-batch", "a second time")


def used_before_it_arrived(what: str, kind: str) -> Mutant:
    """A turn comes before the receive of what it needs."""

    def mutant(graph: Graph, found: Program) -> Broken:
        for device, queue in sorted(found.queues.items()):
            for place, task in enumerate(queue):
                if task.kind != "receive" or task.transfer is None or task.transfer.what != what:
                    continue
                turn = next(
                    i for i in range(place, len(queue))
                    if (queue[i].kind, queue[i].stage, queue[i].micro) == (kind, task.stage, task.micro)
                )  # fmt: skip
                now = (*queue[:place], *queue[place + 1 : turn + 1], task, *queue[turn + 1 :])
                broken = _with_tasks_of(found, device, now)
                return graph, broken, (f"device {device}", kind, f'"{task.writes[0]}"')
        return None

    return mutant


def _local_reads(found: Program) -> list[tuple[int, int, int, str]]:
    """(device, place of the maker's turn, place of the reader's, name) of what a device has made for itself."""
    result = []
    for device, queue in sorted(found.queues.items()):
        makers: dict[str, int] = {}
        for place, task in enumerate(queue):
            if task.kind == "forward":
                result += [(device, makers[name], place, name) for name in task.reads if name in makers]
                makers |= dict.fromkeys(task.writes, place)
    return result


def used_before_the_device_made_it(graph: Graph, found: Program) -> Broken:
    """A stage's turn before that of another stage of the same device whose value it reads."""
    for device, maker, reader, name in _local_reads(found):
        queue = found.queues[device]
        now = (*queue[:maker], queue[reader], *queue[maker:reader], *queue[reader + 1 :])
        names = "|".join(f'"{read}"' for read in (name, *queue[reader].reads))
        return graph, _with_tasks_of(found, device, now), (f"device {device}", names)
    return None


def freed_while_it_is_read(graph: Graph, found: Program) -> Broken:
    """A value is given up by a turn before another stage of the device has read it."""
    for device, maker, reader, name in _local_reads(found):
        queue = list(found.queues[device])
        owner = next(i for i, t in enumerate(queue) if name in t.frees)
        if owner < reader:
            continue
        queue[owner] = replace(queue[owner], frees=tuple(n for n in queue[owner].frees if n != name))
        queue[maker] = replace(queue[maker], frees=(*queue[maker].frees, name))
        broken = _with_tasks_of(found, device, queue)
        return graph, broken, (f"device {device}", f'"{name}"', "freed before")
    return None


def _local_gradients(found: Program) -> list[tuple[int, int, Transfer]]:
    """(device, place of the turn that takes it, gradient) of what never leaves a device."""
    return [
        (device, place, edge)
        for device, queue in sorted(found.queues.items())
        for place, task in enumerate(queue)
        if task.kind == "backward"
        for edge in task.gradients
        if edge.target == task.stage and edge.source in {p.stage for p in found.places[device]}
    ]


def own_gradient_added_twice(graph: Graph, found: Program) -> Broken:
    for device, place, edge in _local_gradients(found):
        queue = list(found.queues[device])
        queue[place] = replace(queue[place], gradients=(*queue[place].gradients, edge))
        broken = _with_tasks_of(found, device, queue)
        return graph, broken, (f"device {device}", f'"{edge.tensor}"', "added 2 times")
    return None


def own_gradient_also_sent(graph: Graph, found: Program) -> Broken:
    """A gradient that the device has itself is sent to it once more."""
    for device, place, edge in _local_gradients(found):
        queue, key = list(found.queues[device]), edge.key(found.queues[device][place].micro)
        micro = queue[place].micro
        queue[place:place] = [Task("send", edge.source, micro, edge, peer=device, reads=(key,))]
        broken = _with_tasks_of(found, device, queue)
        return graph, broken, (f"device {device}", edge.tensor, f"comes from device {device}")
    return None


def own_gradient_forgotten(graph: Graph, found: Program) -> Broken:
    for device, place, edge in _local_gradients(found):
        queue, key = list(found.queues[device]), edge.key(found.queues[device][place].micro)
        kept = {f: tuple(n for n in getattr(queue[place], f) if n != key) for f in ("reads", "frees")}
        gradients = tuple(e for e in queue[place].gradients if e != edge)
        queue[place] = replace(queue[place], gradients=gradients, **kept)
        broken = _with_tasks_of(found, device, queue)
        return graph, broken, (f"device {device}", f'"{edge.tensor}"', "left out")
    return None


def inputs_the_other_way_round(graph: Graph, found: Program) -> Broken:
    """A turn takes its first two inputs for one another."""
    for device, queue in sorted(found.queues.items()):
        for place, task in enumerate(queue):
            if task.kind == "forward" and len(task.reads) > 1:
                one, two, *rest = task.reads
                odd = replace(task, reads=(two, one, *rest))
                broken = _with_tasks_of(found, device, [*queue[:place], odd, *queue[place + 1 :]])
                return graph, broken, (f"device {device}", one.split("@")[0], "in the order")
    return None


def recycled_value_kept_for_a_backward(graph: Graph, found: Program) -> Broken:
    """A pass without a gradient that keeps its activations."""
    device = min(found.queues)
    stage = next((p.stage for p in found.pieces if not p.trains), None)
    if stage is None:
        return None

    def change(d: int, t: Task) -> list[Task]:
        if (t.kind, t.stage) != ("forward", stage):
            return [t]
        return [replace(t, writes=(*t.writes, saved(stage, t.micro or 0)))]

    return graph, with_tasks(found, change), (f"device {device}", "saved of stage")


def never_trained(graph: Graph, found: Program) -> Broken:
    """The only stage goes forward and keeps nothing: each step updates parameters that have no gradients."""
    if len(found.pieces) > 1:
        return None
    (piece,) = found.pieces

    def change(device: int, task: Task) -> list[Task]:
        if task.kind == "forward":
            kept = tuple(name for name in task.writes if not name.startswith("saved"))
            return [replace(task, writes=kept, frees=kept)]
        return [] if task.kind in ("backward", "weight") else [task]

    alone = replace(with_tasks(found, change), pieces=(replace(piece, trains=False),))
    return graph, alone, ("stage 0", "not to be trained", f'"{piece.outputs[0]}"')
