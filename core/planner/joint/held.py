"""Decisions that are held for one stage: ``stage:2.zero=1``, or all that an old plan decided of its stages.

Where all stages have equally many devices, the stage with index i is the one that begins at unit i: what it may not be
is a price that doesn't exist. A stage that is held has copies of all variants' prices, in which blocks and options
that it may not have are infinite; a copy's number is its original's plus a multiple of their count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from partita.graph import Graph
from partita.planner.fix import TO, of_stages
from partita.planner.joint.space import Family
from partita.planner.joint.table import JointTable, Prices


def holding(table: JointTable, family: Family, graph: Graph, fix: Mapping[str, int | str]) -> JointTable:
    """The table with what ``fix`` holds of single stages; the family's stages are as many as ``fix`` says."""
    stages = of_stages(fix)
    if not stages:
        return table
    assert family.stages == fix["pp"]
    ways, prices_of = len(table.prices.forward), table.prices_of.copy()
    copies = [range(ways)]
    barred = [np.zeros(table.prices.forward.shape, dtype=bool)]
    for stage, held in sorted(stages.items()):
        for k, shape in enumerate(family.shapes):
            zero = shape.zero if shape.dp > 1 else held.get("zero", shape.zero)
            if any(held.get(name, has) != has for name, has in (("dp", shape.dp), ("tp", shape.tp), ("zero", zero))):
                prices_of[k, stage] = -1
        prices_of[:, stage] = np.where(prices_of[:, stage] < 0, -1, prices_of[:, stage] + len(copies) * ways)
        copies.append(range(ways))
        barred.append(_barred(table.prices, family, graph, held))
    of, no = np.concatenate(copies), np.concatenate(barred)
    arrays = {field.name: getattr(table.prices, field.name)[of] for field in fields(Prices)}
    for name in ("forward", "backward"):
        arrays[name] = np.where(no, np.inf, arrays[name])
    return replace(table, prices=Prices(**arrays), prices_of=prices_of)


def _barred(prices: Prices, family: Family, graph: Graph, held: Mapping[str, int | str]) -> np.ndarray:
    """[V, n, M]: what a stage may not have."""
    found = np.zeros(prices.forward.shape, dtype=bool)
    if "recompute" in held:
        found |= np.array([option.recompute != held["recompute"] for option in family.options])
    if "blocks" in held:
        names = [block.name for block in graph.blocks]
        first, last = (names.index(name) for name in str(held["blocks"]).split(TO))
        outside = np.ones(len(names), dtype=bool)
        outside[first : last + 1] = False
        found |= outside[None, :, None]
    return found
