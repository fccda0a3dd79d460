"""What breaks plans in practice, in the queues: transfers, updates, orders. Each is one change to a program."""

from __future__ import annotations

from dataclasses import replace

from partita.graph import Graph
from partita.spacetime.program import Program, Task
from tests.spacetime.programs import Broken, Mutant, with_pieces, with_queue, with_tasks


def tied_weights_with_two_owners(graph: Graph, found: Program) -> Broken:
    """Nobody sends anything: each stage updates its own."""
    if not found.shared:
        return None
    name = next(iter(found.shared))
    apart = with_pieces(found, lambda p: replace(p, copies=()))
    alone = with_tasks(apart, lambda d, t: [] if t.transfer and t.transfer.what.startswith("param") else [t])
    return graph, replace(alone, shared={}), (name, "separately")


def _without(what: str, kind: str = "") -> Mutant:
    """No transfer of that kind on any device; turns read and write none."""

    def mutant(graph: Graph, found: Program) -> Broken:
        gone = {t.transfer for queue in found.queues.values() for t in queue if t.transfer and t.transfer.what == what}
        if not gone:
            return None
        names = {e.key(m) for e in gone for m in range(found.shares[0].turns)}

        def change(device: int, task: Task) -> list[Task]:
            if task.transfer in gone:
                return [task] if kind and task.kind != kind else []
            kept = {
                field: tuple(n for n in getattr(task, field) if n not in names)
                for field in ("reads", "writes", "frees")
            }
            return [replace(task, gradients=tuple(e for e in task.gradients if e not in gone), **kept)]

        return graph, with_tasks(found, change), ("|".join({edge.tensor for edge in gone}),)

    return mutant


def _moved(kind: str, after: str) -> Mutant:
    """On the last device the first task of that kind (or transfer) comes right after the first of another."""

    def is_(task: Task, what: str) -> bool:
        return what == (f"{task.kind} {task.transfer.what}" if task.transfer else task.kind)

    def mutant(graph: Graph, found: Program) -> Broken:
        for device, queue in sorted(found.queues.items()):
            one = next((t for t in queue if is_(t, kind)), None)
            other = next((t for t in queue if is_(t, after) and (one is None or t.micro == one.micro)), None)
            if one is None or other is None or queue.index(one) > queue.index(other):
                continue

            def change(tasks: list[Task], one: Task = one, other: Task = other) -> list[Task]:
                tasks.remove(one)
                place = tasks.index(other) + 1
                return [*tasks[:place], one, *tasks[place:]]

            return (
                graph,
                with_queue(found, device, change),
                (f"device {device}", one.transfer.tensor if one.transfer else kind),
            )
        return None

    return mutant


def _dropped(kind: str) -> Mutant:
    """On the last device the last task of that kind is gone."""

    def mutant(graph: Graph, found: Program) -> Broken:
        device = max(found.queues)
        place = max(i for i, task in enumerate(found.queues[device]) if task.kind == kind)
        broken = with_queue(found, device, lambda tasks: tasks[:place] + tasks[place + 1 :])
        return graph, broken, (f"device {device}", kind)

    return mutant


def _doubled(kind: str) -> Mutant:
    def mutant(graph: Graph, found: Program) -> Broken:
        device = max(found.queues)
        place = next(i for i, task in enumerate(found.queues[device]) if task.kind == kind)
        broken = with_queue(found, device, lambda tasks: [*tasks[: place + 1], *tasks[place:]])
        return graph, broken, (f"device {device}", kind)

    return mutant


def never_freed(graph: Graph, found: Program) -> Broken:
    return graph, with_tasks(found, lambda d, t: [replace(t, frees=())]), ("never freed",)


def transfer_of_another_shape(graph: Graph, found: Program) -> Broken:
    sent = next((t.transfer for q in found.queues.values() for t in q if t.transfer), None)
    if sent is None:
        return None
    odd = replace(sent, shape=(*sent.shape[:-1], sent.shape[-1] + 1))
    broken = with_tasks(found, lambda d, t: [replace(t, transfer=odd) if t.transfer == sent else t])
    return graph, broken, (f'"{sent.tensor}"', str(list(odd.shape)), str(list(sent.shape)))


def other_order_of_a_stream(graph: Graph, found: Program) -> Broken:
    """The sender gives a value of micro-batch 1 before that of micro-batch 0 and the receiver doesn't know."""
    for device, queue in sorted(found.queues.items()):
        sends = [i for i, t in enumerate(queue) if t.kind == "send" and t.transfer and t.transfer.what == "value"]
        first = queue[sends[0]] if sends else None
        later = next((i for i in sends if first and queue[i].micro != first.micro), None)
        if first is None or later is None:
            continue
        forward = next(i for i, t in enumerate(queue) if t.kind == "backward")
        if later > forward:
            continue

        def change(tasks: list[Task], first: Task = first, later: int = later) -> list[Task]:
            rest = [t for t in tasks[: later + 1] if t is not first]
            return [*rest, first, *tasks[later + 1 :]]

        return graph, with_queue(found, device, change), (f"device {device}", "one order")
    return None


def collectives_in_another_order(graph: Graph, found: Program) -> Broken:
    """One of those who share pieces takes its first two forward turns the other way round."""
    group = found.tensor_group(found.devices_of[0][0], 0)
    queue = found.queues[group[-1]]
    turns = [i for i, t in enumerate(queue) if t.kind == "forward"][:2]
    if len(group) < 2 or len(found.devices_of) > 1 or turns != [0, 1]:
        return None

    def change(tasks: list[Task]) -> list[Task]:
        tasks[turns[0]], tasks[turns[1]] = tasks[turns[1]], tasks[turns[0]]
        return tasks

    return graph, with_queue(found, group[-1], change), (str(list(group)), "share collectives", "micro-batch 1")


QUEUES: dict[str, Mutant] = {
    "tied weights updated separately": tied_weights_with_two_owners,
    "tied weights whose gradients stay": _without("parameter_gradient"),
    "tied weights whose new values stay": _without("parameter"),
    "tied weights added after the average": _moved("receive parameter_gradient", "reduce"),
    "a gradient never sent": _without("gradient"),
    "a gradient sent and not received": _without("gradient", "receive"),
    "a value never sent": _without("value"),
    "a gradient never averaged": _dropped("reduce"),
    "an average after the update": _moved("reduce", "update"),
    "a micro-batch used before it arrived": _moved("receive value", "forward"),
    "a gradient used before it arrived": _moved("receive gradient", "backward"),
    "a micro-batch never run": _dropped("forward"),
    "a micro-batch without its backward": _dropped("backward"),
    "a micro-batch twice": _doubled("forward"),
    "an update twice": _doubled("update"),
    "a value that is never freed": never_freed,
    "a transfer of another shape": transfer_of_another_shape,
    "a stream in two orders": other_order_of_a_stream,
    "collectives in two orders": collectives_in_another_order,
}
