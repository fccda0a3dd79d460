"""No training: every micro-batch forward, in order. What evaluation runs; no plan names it."""

from __future__ import annotations

from partita.schedules.turn import Turn, check_counts


def forward_only(stages: int, micro_batches: int) -> dict[int, list[Turn]]:
    """Each stage's order of turns."""
    check_counts(stages, micro_batches)
    return {stage: [Turn(stage, "forward", micro) for micro in range(micro_batches)] for stage in range(stages)}
