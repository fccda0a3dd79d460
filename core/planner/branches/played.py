"""The seconds of a step whose stages have numbers of micro-batches of their own: every turn and message, one by one.

A turn begins when the one before it in its stage's order is over and the last message that it waits for has come. A
turn of few samples waits for a part of a larger one, a turn of many for several. What a stage sends goes one after
another, inside a node and between nodes apart, and so does what it gets: in the simulation messages that are under way
together share a port instead, which takes as long in all. This takes a hundredth of a simulation's time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from math import lcm

from partita.planner.joint.sharp import Moved, Turns
from partita.schedules import Turn


def played_seconds(
    orders: Mapping[int, Sequence[Turn]], counts: Sequence[int], turns: Sequence[Turns],
    moved: Mapping[tuple[int, int], Moved], far: Collection[tuple[int, int]] = (),
) -> float:  # fmt: skip
    """The step's seconds, with what is done once at its end. ``moved``: by edge (maker, reader), of one message, which
    has as many samples as the smaller turns of the two; ``far``: the edges between nodes."""
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
    clock, at, runs = [0.0] * len(counts), [0] * len(counts), [False] * len(counts)
    # When each stage's ports, inside a node and between nodes, are free again.
    out, into = ({(stage, tier): 0.0 for stage in orders for tier in (False, True)} for _ in range(2))
    ends: list[tuple[float, int]] = []

    def begin(stage: int) -> None:
        """The stage's next turn, if nothing that it waits for is still to be sent."""
        if runs[stage] or at[stage] == len(orders[stage]):
            return
        turn, start = orders[stage][at[stage]], clock[stage]
        for other, parts in needs.get((stage, turn.phase), ()):
            got, last = came[other, stage, turn.phase], (turn.micro + 1) * parts // counts[stage]
            if len(got) < last:
                return
            start = max(start, got[last - 1])
        runs[stage] = True
        heappush(ends, (start + turns[stage][turn.phase == "backward"], stage))

    for stage in orders:
        begin(stage)
    while ends:
        now, stage = heappop(ends)
        clock[stage] = now
        phase, runs[stage] = orders[stage][at[stage]].phase, False
        at[stage] += 1
        for other, parts, each, tier in sends.get((stage, phase), ()):
            for _ in range(parts // counts[stage]):
                # It comes in while it goes out; who gets it from several at once has the last of them later.
                out[stage, tier] = max(now, out[stage, tier]) + each
                into[other, tier] = max(out[stage, tier], into[other, tier] + each)
                came[stage, other, phase].append(into[other, tier])
            begin(other)
        begin(stage)
    return max(end + sync for end, (_, _, sync) in zip(clock, turns, strict=True))
