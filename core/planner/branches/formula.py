"""The sharper formula of a step (``joint.sharp``) on a graph of stages, in its letters.

On a graph E_i and T_i are the longest paths to stage i and from it, and w_i follows from the stages on the longest path
behind it, as kFkB with k = 1 has them in flight. What several stages send to one shares its port: transfers come one
after another, and c micro-batches of all of them pass each port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.planner.joint.sharp import Moved, Turns, path_seconds


def graph_seconds(
    turns: Sequence[Turns], moved: Mapping[tuple[int, int], Moved], ahead: Sequence[int], micro_batches: int
) -> float:
    """The step of stages between which there are these edges, (maker, reader) in the order of the list."""
    count, c = len(turns), micro_batches
    p = [forward + backward for forward, backward, _ in turns]
    makers: list[list[int]] = [[] for _ in turns]
    readers: list[list[int]] = [[] for _ in turns]
    # What goes through each stage's port, in and out.
    arriving, leaving = [0.0] * count, [0.0] * count
    for (maker, reader), (down, up) in moved.items():
        makers[reader].append(maker)
        readers[maker].append(reader)
        arriving[reader] += down
        leaving[reader] += up
        leaving[maker] += down
        arriving[maker] += up
    before, after = [0.0] * count, [0.0] * count
    for i in range(count):
        for ready, maker in sorted((before[maker] + p[maker], maker) for maker in makers[i]):
            before[i] = max(before[i], ready) + sum(moved[maker, i])
    for i in reversed(range(count)):
        sent = 0.0
        for rest, reader in sorted(((p[reader] + after[reader], reader) for reader in readers[i]), reverse=True):
            sent += sum(moved[i, reader])
            after[i] = max(after[i], sent + rest)
    longest = 0.0
    for i, (forward, backward, _) in enumerate(turns):
        longest = max(longest, before[i] + path_seconds(forward, backward, after[i], ahead[i], c))
        longest = max(longest, before[i] + p[i] + after[i] + (c - 1) * max(arriving[i], leaving[i]))
    return longest + max(sync for _, _, sync in turns)
