"""Of answers that are equally good the one that people would write: blocks that are computed again come first.

Which of several equal blocks of a stage has an option makes no difference to any number. Megatron-core, for one, can
say "the first k layers of each stage" and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.planner.joint.table import Chosen, JointTable


def tidied(table: JointTable, stages: Sequence[Chosen]) -> tuple[Chosen, ...]:
    """The stages with the options of blocks that cost the same in order, the last option first."""
    return tuple(_tidied(table, stage) for stage in stages)


def _tidied(table: JointTable, stage: Chosen) -> Chosen:
    prices, v = table.prices, int(table.prices_of[stage.shape, stage.unit])
    inside = range(stage.start, stage.stop)
    used = sorted(set(stage.options))
    if any(prices.change_forward[v, i][used][:, used].any() or prices.change_backward[v, i][used][:, used].any()
           for i in inside):  # fmt: skip
        return stage
    columns = (
        prices.forward, prices.backward, prices.fixed_bytes, prices.held_bytes, prices.temporary_bytes, prices.sync,
        prices.enter_forward, prices.enter_backward, prices.leave_forward, prices.leave_backward,
    )  # fmt: skip
    groups: dict[object, list[int]] = {}
    for i in inside:
        lent = (float(prices.lent_bytes[v, stage.start, i]), float(prices.lent_sync[v, stage.start, i]))
        groups.setdefault((lent, *(column[v, i].tobytes() for column in columns)), []).append(i)
    options = list(stage.options)
    for places in groups.values():
        of_group = sorted((stage.options[i - stage.start] for i in places), reverse=True)
        for i, option in zip(places, of_group, strict=True):
            options[i - stage.start] = option
    return replace(stage, options=tuple(options))
