"""The sharper formula of a step (``joint.sharp``) on a graph of stages, in its letters.

On a graph E_i and T_i are the longest paths to stage i and from it, and w_i follows from the stages on the longest path
behind it, as kFkB with k = 1 has them in flight. What several stages send to one shares its port, and so do the
gradients that it sends back to them: where branches are balanced all of it is under way at once, and each takes as long
as all together. Inside a node and between nodes the ports are different ones. c micro-batches pass each port.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from partita.planner.joint.sharp import Moved, Turns, path_seconds


def graph_seconds(
    turns: Sequence[Turns], moved: Mapping[tuple[int, int], Moved], ahead: Sequence[int], micro_batches: int,
    far: Collection[tuple[int, int]] = (),
) -> float:  # fmt: skip
    """The step of stages between which there are these edges, (maker, reader) in the order of the list. ``far``: those
    between nodes."""
    count, c = len(turns), micro_batches
    p = [forward + backward for forward, backward, _ in turns]
    makers: list[list[int]] = [[] for _ in turns]
    readers: list[list[int]] = [[] for _ in turns]
    # What goes through each stage's ports, inside a node and between nodes: from its makers and back, to its readers
    # and back.
    read, returned, sent, got = ([[0.0, 0.0] for _ in turns] for _ in range(4))
    for (maker, reader), (down, up) in moved.items():
        makers[reader].append(maker)
        readers[maker].append(reader)
        tier = (maker, reader) in far
        read[reader][tier] += down
        returned[reader][tier] += up
        sent[maker][tier] += down
        got[maker][tier] += up
    before, after = [0.0] * count, [0.0] * count
    for i in range(count):
        for ready, maker in sorted((before[maker] + p[maker], maker) for maker in makers[i]):
            before[i] = max(before[i], ready) + sum(moved[maker, i])
    for i in reversed(range(count)):
        passed = 0.0
        for rest, reader in sorted(((p[reader] + after[reader], reader) for reader in readers[i]), reverse=True):
            tier = (i, reader) in far
            passed += read[reader][tier] + returned[reader][tier]
            after[i] = max(after[i], passed + rest)
    longest = 0.0
    for i, (forward, backward, _) in enumerate(turns):
        longest = max(longest, before[i] + path_seconds(forward, backward, after[i], ahead[i], c))
        for tier in (False, True):
            busy = max(read[i][tier] + got[i][tier], sent[i][tier] + returned[i][tier])
            longest = max(longest, before[i] + p[i] + after[i] + (c - 1) * busy)
    return longest + max(sync for _, _, sync in turns)
