"""GPipe (Huang et al., 2019): all forwards, then all backwards in the same order; all micro-batches are held."""

from __future__ import annotations

from collections.abc import Sequence

from partita.schedules.turn import Turn, check_counts


def gpipe(stages: int, micro_batches: int) -> dict[int, list[Turn]]:
    """Each stage's order of turns."""
    check_counts(stages, micro_batches)
    return gpipe_of([micro_batches] * stages)


def gpipe_of(counts: Sequence[int]) -> dict[int, list[Turn]]:
    """The same for stages of unlike numbers of micro-batches."""
    return {
        stage: [Turn(stage, phase, m) for phase in ("forward", "backward") for m in range(count)]
        for stage, count in enumerate(counts)
    }
