"""Compiled: what the blocks that are left take at least, from each downward-closed set on.

A dynamic programme from the back over the stage that comes first of them: all that is read counts as made. Where all
that can run after a stage reads from it, the rest begins after its first micro-batch; so does a last stage that reads
from it.
"""

from __future__ import annotations

import numpy as np

from partita.planner.bits import meets, wider, within
from partita.planner.joint.compiled import compiled


@compiled
def least_rest(masks, seconds, sizes, c, all_units, makers, live, alive, maker_of):
    """[sets, U + 1]: no stages of the blocks outside a set, on so many units, end sooner after its values are made.

    ``seconds`` [sizes, sets]: of a micro-batch of the set's blocks in a stage of so many ``sizes`` of units; ``makers``
    [n, words]: the blocks that each reads; ``maker_of``: the block that makes each value.
    """
    sets, nodes = masks.shape[0], makers.shape[0]
    one, several = np.full((sets, all_units + 1), np.inf), np.full((sets, all_units + 1), np.inf)
    whole = sets - 1
    one[whole, 0] = 0.0
    # Of each set the blocks that may run next, in one list.
    begin, count = np.zeros(sets + 1, np.int64), 0
    nexts = np.zeros(1024, np.int64)
    for i in range(sets):
        begin[i] = count
        for node in range(nodes):
            if masks[i, node // 64] >> np.uint64(node % 64) & np.uint64(1) or not within(makers[node], masks[i]):
                continue
            if count == nexts.shape[0]:
                nexts = wider(nexts, 2 * count)
            nexts[count] = node
            count += 1
    begin[sets] = count
    for i in range(sets - 2, -1, -1):
        for size in range(sizes.shape[0]):
            if sizes[size] <= all_units:
                one[i, sizes[size]] = c * (seconds[size, whole] - seconds[size, i])
        for j in range(i + 1, whole):
            if not within(masks[i], masks[j]):
                continue
            # Whether all that runs next reads from the stage, and whether anything does.
            all_read = True
            for at in range(begin[j], begin[j + 1]):
                if not meets(makers[nexts[at]], masks[i], masks[j]):
                    all_read = False
                    break
            some = all_read
            if not some:
                for at in range(alive[j]):
                    node = maker_of[live[j, at]]
                    if not masks[i, node // 64] >> np.uint64(node % 64) & np.uint64(1):
                        some = True
                        break
            for size in range(sizes.shape[0]):
                p = seconds[size, j] - seconds[size, i]
                for units in range(sizes[size] + 1, all_units + 1):
                    left = units - sizes[size]
                    rest = min(one[j, left] + (p if some else 0.0), several[j, left] + (p if all_read else 0.0))
                    several[i, units] = min(several[i, units], max(c * p, rest))
    return np.minimum(one, several)
