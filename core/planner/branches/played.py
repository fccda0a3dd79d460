"""The seconds of a step whose stages have numbers of micro-batches of their own: every turn and message, one by one.

A turn begins when the one before it in its stage's order is over and the last message that it waits for has come. A
turn of few samples waits for the parts of larger ones, a turn of many for several. What a stage sends goes one after
another, inside a node and between nodes apart. That several stages send to one at the same time is not seen: the
simulation sees it, and takes a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import lcm

from partita.planner.joint.sharp import Moved, Turns
from partita.schedules import Turn


def played_seconds(
    orders: Mapping[int, Sequence[Turn]], counts: Sequence[int], turns: Sequence[Turns],
    moved: Mapping[tuple[int, int], Moved], far: Collection[tuple[int, int]] = (),
) -> float:  # fmt: skip
    """The step's seconds, with what is done once at its end. ``moved``: by edge (maker, reader), of one message, which
    has as many samples as the smaller turns of the two; ``far``: the edges between nodes."""
    stages = range(len(counts))
    # By stage and direction: (the other stage, messages of the step, seconds of one, between nodes).
    sends: dict[tuple[int, str], list[tuple[int, int, float, bool]]] = {}
    needs: dict[tuple[int, str], list[tuple[int, int]]] = {}
    # When the messages came, by edge and direction.
    came: dict[tuple[int, int, str], list[float]] = {}
    for (maker, reader), (down, up) in moved.items():
        parts = lcm(counts[maker], counts[reader])
        for one, other, phase, each in ((maker, reader, "forward", down), (reader, maker, "backward", up)):
            sends.setdefault((one, phase), []).append((other, parts, each, (maker, reader) in far))
            needs.setdefault((other, phase), []).append((one, parts))
            came[one, other, phase] = []
    clock, at = [0.0] * len(counts), [0] * len(counts)
    # When each stage's port, inside a node and between nodes, is free again.
    port = {(stage, tier): 0.0 for stage in stages for tier in (False, True)}
    waiting = list(reversed(stages))
    while waiting:
        stage = waiting.pop()
        count, order = counts[stage], orders[stage]
        while at[stage] < len(order):
            turn = order[at[stage]]
            start = clock[stage]
            for other, parts in needs.get((stage, turn.phase), ()):
                got, last = came[other, stage, turn.phase], (turn.micro + 1) * parts // count
                if len(got) < last:
                    break
                start = max(start, got[last - 1])
            else:
                end = start + turns[stage][0 if turn.phase == "forward" else 1]
                clock[stage] = end
                at[stage] += 1
                for other, parts, each, tier in sends.get((stage, turn.phase), ()):
                    got = came[stage, other, turn.phase]
                    for _ in range(parts // count):
                        port[stage, tier] = max(port[stage, tier], end) + each
                        got.append(port[stage, tier])
                    waiting.append(other)
                continue
            break
    return max(clock[stage] + turns[stage][2] for stage in stages)
