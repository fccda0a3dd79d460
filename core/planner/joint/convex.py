"""Blocks that are no chain: what a stage of any convex set of them costs.

Blocks are numbered so that an edge ⟨u, w⟩ goes up: w reads what u makes. Stages keep the order of edges (UniAP, section
3; its contiguous sets), and a stage's blocks need not be numbered one after another: an answer is an order of blocks,
and stages of it. The table's prices are read edge by edge: ``change_*`` at w for each edge inside a stage, ``enter_*``
where none inside leads to a block, ``leave_*`` where none inside leads on, ``transfer_*`` at w for each edge at each
boundary that it crosses. With the edges of a chain all of this is what the table says of a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partita.planner.joint.table import Chosen, JointTable, Prices

Edges = Sequence[tuple[int, int]]


def chain(blocks: int) -> Edges:
    """The edges of a chain."""
    return [(block, block + 1) for block in range(blocks - 1)]


def condensed(
    table: JointTable, edges: Edges, order: Sequence[int], stages: Sequence[Chosen]
) -> tuple[JointTable, tuple[Chosen, ...]]:
    """The table in which each stage is one block: what the formula says of these, holds for the stages."""
    count = len(stages)
    at: dict[int, int] = {}
    option: dict[int, int] = {}
    for place, stage in enumerate(stages):
        blocks = order[stage.start : stage.stop]
        at |= dict.fromkeys(blocks, place)
        option |= dict(zip(blocks, stage.options, strict=True))
    before = {w for u, w in edges if at[u] == at[w]}
    after = {u for u, w in edges if at[u] == at[w]}
    way = [int(table.prices_of[stage.shape, stage.unit]) for stage in stages]
    new = {name: np.zeros((count, count, 1)) for name in _BLOCKS}
    for block, place in at.items():
        v, m = way[place], option[block]
        here = (place, place, 0)
        for name in ("forward", "backward", "fixed_bytes", "held_bytes", "sync"):
            new[name][here] += getattr(table.prices, name)[v, block, m]
        new["temporary_bytes"][here] = max(new["temporary_bytes"][here], table.prices.temporary_bytes[v, block, m])
        for phase in ("forward", "backward"):
            if block not in before:
                new[phase][here] += getattr(table.prices, f"enter_{phase}")[v, block, m]
            if block not in after:
                new[phase][here] += getattr(table.prices, f"leave_{phase}")[v, block, m]
    moved = {phase: np.zeros((2, count + 1, 1, 1)) for phase in ("forward", "backward")}
    for u, w in edges:
        for phase in ("forward", "backward"):
            if at[u] == at[w]:
                change = getattr(table.prices, f"change_{phase}")
                new[phase][at[u], at[u], 0] += change[way[at[u]], w, option[u], option[w]]
            for place in range(at[u], at[w]):
                one, two = stages[place], stages[place + 1]
                ports = int(table.port[one.shape]), int(table.port[two.shape])
                seconds = getattr(table, f"transfer_{phase}")
                moved[phase][0, place + 1, 0, 0] += seconds[int(table.crosses[two.unit]), w, *ports]
    none = np.zeros((count, count, 1, 1)), np.zeros((count, count, count))
    prices = Prices(
        **new, change_forward=none[0], change_backward=none[0], base_bytes=table.prices.base_bytes[way],
        base_sync=table.prices.base_sync[way], lent_bytes=none[1], lent_sync=none[1],
    )  # fmt: skip
    small = replace(
        table, prices=prices, units=np.ones(count, int), port=np.zeros(count, int),
        prices_of=np.where(np.eye(count), np.arange(count), -1), crosses=np.zeros(count + 1, int),
        transfer_forward=moved["forward"], transfer_backward=moved["backward"], most_stages=count,
    )  # fmt: skip
    return small, tuple(Chosen(place, place + 1, place, place, (0,)) for place in range(count))


_BLOCKS = (
    "forward", "backward", "fixed_bytes", "held_bytes", "temporary_bytes", "sync", "enter_forward", "enter_backward",
    "leave_forward", "leave_backward",
)  # fmt: skip
