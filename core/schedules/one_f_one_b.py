"""1F1B (PipeDream-flush, Narayanan et al., 2021): a warm-up, then one forward and one backward in turn, then the rest.

Stage i of S warms up with S − i − 1 forwards, so that it never holds more than min(c, S − i) of the c micro-batches.
"""

from __future__ import annotations

from partita.schedules.turn import Turn, check_counts


def one_f_one_b(stages: int, micro_batches: int) -> dict[int, list[Turn]]:
    """Each stage's order of turns."""
    check_counts(stages, micro_batches)
    return {stage: _stage(stage, stages, micro_batches) for stage in range(stages)}


def _stage(stage: int, stages: int, micro_batches: int) -> list[Turn]:
    warm_up = min(micro_batches, stages - stage - 1)
    turns = [Turn(stage, "forward", m) for m in range(warm_up)]
    for m in range(warm_up, micro_batches):
        turns += [Turn(stage, "forward", m), Turn(stage, "backward", m - warm_up)]
    turns += [Turn(stage, "backward", m) for m in range(micro_batches - warm_up, micro_batches)]
    return turns
