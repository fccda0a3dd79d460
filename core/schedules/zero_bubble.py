"""ZB-H1 (Qi et al., 2023, section 2.3): 1F1B with the backward in two parts, of which weight turns fill the bubble.

A backward (B) gives the gradients of what the stage was given, which the stage before waits for; the gradients of its
parameters (W) wait for nobody. Forwards and backwards are ordered as in 1F1B. Stage i puts off i of its W: it keeps
p − i micro-batches for their B and i more for their W, so that every stage holds p at the most, as the first one does
in 1F1B. The bubble falls from (p − 1)(F + B + W) to (p − 1)(F + B − W).
"""

from __future__ import annotations

from partita.schedules.turn import Turn, check_counts


def zero_bubble(stages: int, micro_batches: int) -> dict[int, list[Turn]]:
    """Each stage's order of turns."""
    check_counts(stages, micro_batches)
    return {stage: _stage(stage, stages, micro_batches) for stage in range(stages)}


def _stage(stage: int, stages: int, micro_batches: int) -> list[Turn]:
    warm_up = min(micro_batches, stages - stage - 1)
    turns = [Turn(stage, "forward", m) for m in range(warm_up)]
    for m in range(micro_batches):
        if warm_up + m < micro_batches:
            turns.append(Turn(stage, "forward", warm_up + m))
        turns.append(Turn(stage, "backward", m))
        if m >= stage:
            turns.append(Turn(stage, "weight", m - stage))
    first = max(0, micro_batches - stage)
    return turns + [Turn(stage, "weight", m) for m in range(first, micro_batches)]
