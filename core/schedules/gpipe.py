"""GPipe (Huang et al., 2019): all forwards, then all backwards in the same order; all micro-batches are held."""

from __future__ import annotations

from partita.schedules.turn import Turn, check_counts


def gpipe(stages: int, micro_batches: int) -> dict[int, list[Turn]]:
    """Each stage's order of turns."""
    check_counts(stages, micro_batches)
    micros = range(micro_batches)
    return {
        stage: [Turn(stage, "forward", m) for m in micros] + [Turn(stage, "backward", m) for m in micros]
        for stage in range(stages)
    }
