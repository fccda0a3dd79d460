"""Interleaved 1F1B (Narayanan et al., 2021, section 2.2): each of p lanes serves v stages, p apart.

Micro-batches go in groups of p: a lane takes a group through its first stage, then through its second, and so on;
backwards the same from its last stage. The pipeline then fills in turns that are v times smaller, so that the bubble
is (p − 1) / (v·m) of the work; for it a lane holds more micro-batches and sends v times as much.
"""

from __future__ import annotations

from partita.errors import PlanError, divisors, listed
from partita.schedules.one_f_one_b import one_f_one_b
from partita.schedules.schedule import Lanes
from partita.schedules.turn import Turn, check_counts, check_positive


def interleaved_lanes(stages: int, lanes: int) -> Lanes:
    """Lane r serves the stages r, r + p, r + 2p, …"""
    check_positive("stages", stages)
    check_positive("lanes", lanes)
    if stages % lanes:
        raise PlanError(f"lanes={lanes} does not divide stages={stages}; {listed(divisors(stages))} would")
    return tuple(tuple(range(lane, stages, lanes)) for lane in range(lanes))


def interleaved(stages: int, micro_batches: int, lanes: int) -> dict[int, list[Turn]]:
    """Each lane's order of turns. PlanError unless p divides the stages and, with several a lane, the micro-batches."""
    check_counts(stages, micro_batches)
    served = interleaved_lanes(stages, lanes)
    if micro_batches % lanes and stages > lanes:
        near = [count for count in (micro_batches // lanes * lanes, -(-micro_batches // lanes) * lanes) if count]
        raise PlanError(
            f"micro_batches={micro_batches} is no multiple of lanes={lanes}, as an interleaved schedule needs; "
            f"{listed(near)} would be, and schedule 1f1b takes any number"
        )
    if stages == lanes:
        return one_f_one_b(stages, micro_batches)
    return {lane: _lane(lane, mine, lanes, micro_batches) for lane, mine in enumerate(served)}


def _lane(lane: int, served: tuple[int, ...], lanes: int, micro_batches: int) -> list[Turn]:
    groups = [range(first, first + lanes) for first in range(0, micro_batches, lanes)]
    forward = [Turn(stage, "forward", m) for group in groups for stage in served for m in group]
    backward = [Turn(stage, "backward", m) for group in groups for stage in reversed(served) for m in group]
    # Until the first group is in the lane's last stage, and then twice the way to the last lane: there and back.
    warm_up = min(len(forward), (len(served) - 1) * lanes + 2 * (lanes - lane - 1))
    turns = forward[:warm_up]
    for ahead, back in zip(forward[warm_up:], backward, strict=False):
        turns += [ahead, back]
    return turns + backward[len(forward) - warm_up :]
