"""A turn: one stage, one phase, one micro-batch. What a schedule orders; and what an order holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from partita.errors import PlanError

# With turns "weight", a backward computes the gradients of what a stage was given, and a weight turn its parameters'.
Phase = Literal["forward", "backward", "weight"]
# An argument of a schedule: a number, or one for each stage.
Argument = int | tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    """One pass of one micro-batch through one stage."""

    stage: int
    phase: Phase
    micro: int


def in_flight(turns: Sequence[Turn]) -> int:
    """The most micro-batches that one lane's order holds at any moment, each counted once for every stage of the lane.

    A micro-batch is held from a stage's forward to the end of the last turn that needs what the forward kept: backward
    or weight. Where neither follows (recycling, evaluation) nothing is kept.
    """
    last = {(turn.stage, turn.micro): place for place, turn in enumerate(turns) if turn.phase != "forward"}
    held = most = 0
    for place, turn in enumerate(turns):
        key = (turn.stage, turn.micro)
        if turn.phase == "forward":
            held += key in last
        elif last[key] == place:
            held -= 1
        most = max(most, held)
    return most


def check_counts(stages: int, micro_batches: int) -> None:
    """PlanError for counts that are not positive."""
    for what, count in (("stages", stages), ("micro_batches", micro_batches)):
        check_positive(what, count)


def check_positive(what: str, count: int) -> None:
    """PlanError for a count that is not positive."""
    if count < 1:
        raise PlanError(f"{what}={count}: a schedule needs at least 1")
