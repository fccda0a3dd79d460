"""The communication model again, as plainly as it can be said: exact fractions, everything looked at in every step.

Shares nothing with the engine but the program. In each instant all that can begin begins, then time moves on to the
next end of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

from partita.cluster import Cluster
from partita.spacetime.program import Program, Task


@dataclass
class Flow:
    """A message under way: what is left of its latency and of its bytes."""

    latency: Fraction
    left: Fraction
    ports: list[tuple[object, Fraction]]


def ports(cluster: Cluster, source: int, target: int) -> list[tuple[object, Fraction]]:
    """Names and bytes a second of what a message passes."""
    leaves, enters = cluster.node_of[source], cluster.node_of[target]
    if leaves == enters:
        near = Fraction(cluster.kinds[leaves].intra_node.bytes_per_second)
        return [(("out", source, "near"), near), (("in", target, "near"), near)]
    found: list[tuple[object, Fraction]] = []
    for way, device, node in (("out", source, leaves), ("in", target, enters)):
        kind = cluster.kinds[node]
        found.append(((way, device, "far"), Fraction(kind.inter_node.bytes_per_second)))
        if kind.node_bytes_per_second is not None:
            found.append(((f"node {way}", node), Fraction(kind.node_bytes_per_second)))
    return found


def partners(program: Program, device: int, kind: str) -> list[int]:
    """Who must be there before a task begins."""
    own = program.only_place(device)
    zero = max(program.zero[name] for name in program.pieces[own.stage].parameters)
    data = kind == "reduce" or zero >= {"forward": 3, "backward": 2}.get(kind, 9)
    tensor = kind in ("forward", "backward")
    return [
        other for other, (place,) in program.places.items()
        if place.stage == own.stage and (data or place.data == own.data) and (tensor or place.tensor == own.tensor)
    ]  # fmt: skip


def posted_until(queue: tuple[Task, ...], position: int) -> int:
    """The runtime posts the receives that come before the end of the second turn from here."""
    turns = 0
    for place in range(position, len(queue)):
        turns += queue[place].kind in ("forward", "backward")
        if turns == 2:
            return place + 1
    return len(queue)


def brute(
    program: Program, seconds: Mapping[tuple[int, str], float], size: Callable[[Task], int], cluster: Cluster
) -> dict[tuple[int, int], Fraction]:
    """When the task at (device, position) ends; of sends and receives, when the message arrives."""
    now = Fraction(0)
    queues = program.queues
    position = dict.fromkeys(queues, 0)
    posted = dict.fromkeys(queues, 0)
    running: dict[int, Fraction] = {}
    sent: dict[object, list[tuple[int, int]]] = {}
    open_receives: dict[object, list[tuple[int, int]]] = {}
    flows: dict[object, tuple[Flow, tuple[int, int], tuple[int, int]]] = {}
    ends: dict[tuple[int, int], Fraction] = {}
    for _ in count():
        moved = True
        while moved:
            moved = False
            waiting = [d for d, queue in queues.items() if d not in running and position[d] < len(queue)]
            for device in waiting:
                queue = queues[device]
                until = posted_until(queue, position[device])
                for place in range(posted[device], until):
                    task = queue[place]
                    if task.kind == "receive":
                        stream = (task.peer, device, task.transfer.backwards)
                        open_receives.setdefault(stream, []).append((device, place))
                posted[device] = max(posted[device], until)
            for device in waiting:
                queue, here = queues[device], position[device]
                # Others of its group may have taken it along.
                if device in running:
                    continue
                task = queue[here]
                if task.kind == "send":
                    sent.setdefault((device, task.peer, task.transfer.backwards), []).append((device, here))
                    position[device] += 1
                    moved = True
                elif task.kind == "receive":
                    if (device, here) in ends:
                        position[device] += 1
                        moved = True
                else:
                    group = partners(program, device, task.kind)
                    there = [other for other in group if other not in running and position[other] == here]
                    if there == group and all(queues[other][here].kind == task.kind for other in group):
                        running |= {other: Fraction(seconds[task.stage, task.kind]) for other in group}
                        moved = True
            for stream in list(sent):
                if stream not in flows and sent[stream] and open_receives.get(stream):
                    sender, receiver = sent[stream].pop(0), open_receives[stream].pop(0)
                    task = queues[sender[0]][sender[1]]
                    bytes_left = Fraction(size(task))
                    same = cluster.node_of[sender[0]] == cluster.node_of[receiver[0]]
                    kinds = [cluster.kinds[cluster.node_of[device]] for device in (sender[0], receiver[0])]
                    latency = max((kind.intra_node if same else kind.inter_node).latency_seconds for kind in kinds)
                    flow = Flow(
                        Fraction(latency) if bytes_left else Fraction(0), bytes_left,
                        ports(cluster, sender[0], receiver[0]),
                    )  # fmt: skip
                    flows[stream] = (flow, sender, receiver)
                    moved = True
            for stream, (flow, sender, receiver) in list(flows.items()):
                if flow.latency == flow.left == 0:
                    ends[sender] = ends[receiver] = now
                    del flows[stream]
                    moved = True
            for device in [device for device, left in running.items() if left == 0]:
                ends[device, position[device]] = now
                del running[device]
                position[device] += 1
                moved = True
        if not running and not flows:
            break
        load: dict[object, int] = {}
        for flow, _, _ in flows.values():
            for port, _ in flow.ports:
                load[port] = load.get(port, 0) + 1
        pace = {stream: min(whole / load[port] for port, whole in flow.ports) for stream, (flow, _, _) in flows.items()}
        step = min([*running.values(), *(f.latency or f.left / pace[stream] for stream, (f, _, _) in flows.items())])
        now += step
        running = {device: left - step for device, left in running.items()}
        for stream, (flow, _, _) in flows.items():
            if flow.latency:
                flow.latency -= step
            else:
                flow.left -= step * pace[stream]
    assert all(position[device] == len(queue) for device, queue in queues.items()), "a standstill"
    return ends
