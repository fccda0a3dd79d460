"""What no stages of a table go under, whatever their graph is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from partita.planner.joint.table import JointTable


def least_step(table: JointTable, edges: Iterable[tuple[int, int]]) -> float:
    """Seconds that no step takes less than; infinite where a table has no stages. ``edges`` of blocks, (maker, reader).

    c turns of the slowest stage, one micro-batch along the longest path of blocks, and the least of what is done at the
    step's end. The slowest stage takes at least an even share of all work, and as long as the longest block. Of S
    stages of one size one has k + 1 of the first kS + 1 blocks, the longest first.
    """
    if not table.used.any():
        return float("inf")
    prices = table.prices
    each = (prices.forward + prices.backward)[table.used].min(axis=2)
    if not np.isfinite(each.min(axis=0)).all():
        return float("inf")
    work = (each * table.least_units[table.used, None]).min(axis=0).sum() / table.all_units
    blocks = each.min(axis=0)
    slowest = max(float(work), float(blocks.max()))
    if (table.units == table.units[0]).all():
        stages, longest = table.all_units // int(table.units[0]), np.sort(blocks)[::-1]
        for k in range(1, (len(longest) - 1) // stages + 1):
            slowest = max(slowest, float(longest[k * stages - k : k * stages + 1].sum()))
    end = blocks.copy()
    for maker, reader in sorted(edges, reverse=True):
        end[maker] = max(end[maker], blocks[maker] + end[reader])
    return max(table.micro_batches * slowest, float(end.max())) + float(prices.base_sync[table.used].min())
