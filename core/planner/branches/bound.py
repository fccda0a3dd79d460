"""What no stages of a table go under, whatever their graph is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from partita.planner.joint.table import JointTable


def least_step(tables: Iterable[JointTable], edges: Iterable[tuple[int, int]]) -> float:
    """Seconds that no step takes less than; infinite where a table has no stages. ``edges`` of blocks, (maker, reader).

    ``tables`` of one family; of several each block may be of any, as where stages have their own numbers of
    micro-batches.

    c turns of the slowest stage, one micro-batch along the longest path of blocks, and the least of what is done at the
    step's end. The slowest stage takes at least an even share of all work, and as long as the longest block. Of S
    stages of one size one has k + 1 of the first kS + 1 blocks, the longest first.
    """
    found, some = [], None
    for table in tables:
        if table.used.any():
            found.append(_each(table))
            some = table
    if some is None:
        return float("inf")
    # Of each block, of several tables the least: a micro-batch, all of a step, that times the units of its stage.
    blocks, whole, work = (np.min(each, axis=0) for each in zip(*found, strict=True))
    if not np.isfinite(blocks).all():
        return float("inf")
    slowest = max(float(work.sum() / some.all_units), float(whole.max()))
    if (some.units == some.units[0]).all():
        stages, longest = some.all_units // int(some.units[0]), np.sort(whole)[::-1]
        for k in range(1, (len(longest) - 1) // stages + 1):
            slowest = max(slowest, float(longest[k * stages - k : k * stages + 1].sum()))
    end = blocks.copy()
    for maker, reader in sorted(edges, reverse=True):
        end[maker] = max(end[maker], blocks[maker] + end[reader])
    # Whatever the micro-batches, it is the same.
    return max(slowest, float(end.max())) + float(some.prices.base_sync[some.used].min())


def _each(table: JointTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[n] each: the least seconds of a micro-batch, of a step, and of a step times the units of the stage."""
    each = (table.prices.forward + table.prices.backward)[table.used].min(axis=2)
    whole = table.micro_batches * each
    return each.min(axis=0), whole.min(axis=0), (whole * table.least_units[table.used, None]).min(axis=0)
