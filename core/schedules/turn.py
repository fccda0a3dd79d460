"""A turn: one stage, one phase, one micro-batch. What a schedule orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from partita.errors import PlanError

Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class Turn:
    """The forward or backward pass of one micro-batch through one stage."""

    stage: int
    phase: Phase
    micro: int


def in_flight(turns: Sequence[Turn]) -> int:
    """The most micro-batches that are forwarded and not yet backwarded at any moment of one stage's order."""
    held = most = 0
    for turn in turns:
        held += 1 if turn.phase == "forward" else -1
        most = max(most, held)
    return most


def check_counts(stages: int, micro_batches: int) -> None:
    """PlanError for counts that are not positive."""
    for what, count in (("stages", stages), ("micro_batches", micro_batches)):
        if count < 1:
            raise PlanError(f"{what}={count}: a schedule needs at least 1")
