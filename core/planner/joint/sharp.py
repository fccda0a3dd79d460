"""A sharper formula of 1F1B's step time: what turns of unlike lengths and transfers keep waiting, nearly exactly.

The letters are ``formula``'s; w_i is min(c, what 1F1B has in flight in stage i), X = ⌊(c − 1) / w⌋, and

    E_i = Σ_{k<i} (p_k + o_k)         the first forward comes to stage i, the last backward goes back from there
    T_i = Σ_{k>i} p_k + Σ_{j≥i} o_j   from stage i to the end of the pipeline and back

Stage i runs w forwards, then a backward and a forward in turn, and at last w backwards; forward t + w comes after
backward t. In such an order any path of turns, each of which waits for the one before, is a lower bound of the time.
From the start of stage i's first forward to the end of its first backward:

    T + p                             the first micro-batch goes to the end and comes back
    w f + b                           the warm-up and the backward that follows it, without a pause

and from there to the end of its last backward, where c > w:

    (c − w) p + (w − 1) b             its own turns, without a pause
    T + (c − w) p                     (c − w) f + (c − w − 1) b to the end of the last forward, then the last
                                      micro-batch goes to the end and comes back for its backward
    (c − 1 − X w) p + X (T + p)       backwards with their forwards, without a pause; then X round trips: a backward
                                      lets the forward go whose own backward comes w later

Where c ≤ w all forwards come first and no forward waits for a backward; the paths of c f, T and c b are

    max(T + p + (c − 1) b,  c p,  c f + T + b)

A boundary is passed by c micro-batches one after another: E_i + p_i + T_i + (c − 1) · max(of_i, ob_i). The step takes
at least the largest of these over all stages and boundaries, before what comes once a step; max s is added to it as in
the stated formula.

Beside queues that are run, of up to 8 stages and 32 micro-batches: 0.7 % less on average where forwards differ by a few
tenths and transfers take up to a forward, 1.9 % where they differ several times and transfers take up to 1.5 × one. The
search keeps the stated formula (``search``): its sum and maxima can be proven in less time. ``climb`` looks for what is
better under this one near what the search found.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.planner.joint.formula import stage_numbers, transfer
from partita.planner.joint.table import Chosen, JointTable

# Forward, backward and the step's end of a stage; forward and backward of a boundary: seconds.
Turns = tuple[float, float, float]
Moved = tuple[float, float]


def path_seconds(forward: float, backward: float, behind: float, ahead: int, micro_batches: int) -> float:
    """From the first forward to the last backward of a stage; ``behind``: T, ``ahead``: w."""
    p, w, c = forward + backward, min(ahead, micro_batches), micro_batches
    head = max(behind + p, w * forward + backward)
    if c <= w:
        return max(head + (c - 1) * backward, c * forward + behind + backward)
    rounds = (c - 1) // w
    return head + max(
        (c - w) * p + (w - 1) * backward,
        behind + (c - w) * p,
        rounds * (behind + p) + (c - 1 - rounds * w) * p,
    )


def pipeline_seconds(turns: Sequence[Turns], moved: Sequence[Moved], ahead: Sequence[int], micro_batches: int) -> float:
    """The step of stages, the last of which has ``ahead[0]`` in flight; moved[i] is the boundary after stage i."""
    behind = longest = end = 0.0
    last = len(turns) - 1
    for i in range(last, -1, -1):
        forward, backward, sync = turns[i]
        p = forward + backward
        if i < last:
            down, up = moved[i]
            behind += down + up
            longest = max(longest + p + down + up, p + behind + (micro_batches - 1) * max(down, up))
        longest = max(longest, path_seconds(forward, backward, behind, ahead[last - i], micro_batches))
        behind += p
        end = max(end, sync)
    return longest + end


def sharp_seconds(table: JointTable, stages: Sequence[Chosen]) -> float:
    """Seconds of one step of an answer of a 1F1B table."""
    count = len(stages)
    numbers = [stage_numbers(table, stage, count - 1 - at) for at, stage in enumerate(stages)]
    turns = [(each.forward, each.backward, each.sync) for each in numbers]
    moved = [transfer(table, *pair) for pair in zip(stages[:-1], stages[1:], strict=True)]
    return pipeline_seconds(turns, moved, [table.ahead(k) for k in range(count)], table.micro_batches)
