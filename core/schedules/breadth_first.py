"""Breadth-first pipelines (Lamy-Poirier, 2023): each of p lanes serves v stages, p apart, one after another.

A lane takes all micro-batches through its first stage, then all through its second, and so on; backwards the same from
its last stage. The pipeline fills in turns that are v times smaller, as in the interleaved schedule, for any number of
micro-batches; a stage's parameters are used in two goes a step, and all micro-batches are held.

Of m micro-batches it takes (v·max(m, p) + min(m, p) − 1)(F + B). A lane's turns are in the order of the list, so it
goes for any graph of stages.
"""

from __future__ import annotations

from partita.schedules.interleaved import interleaved_lanes
from partita.schedules.turn import Turn, check_counts


def breadth_first(stages: int, micro_batches: int, lanes: int) -> dict[int, list[Turn]]:
    """Each lane's order of turns. PlanError unless the lanes divide the stages."""
    check_counts(stages, micro_batches)
    micros = range(micro_batches)
    return {
        lane: [
            *(Turn(stage, "forward", micro) for stage in served for micro in micros),
            *(Turn(stage, "backward", micro) for stage in reversed(served) for micro in micros),
        ]
        for lane, served in enumerate(interleaved_lanes(stages, lanes))
    }
