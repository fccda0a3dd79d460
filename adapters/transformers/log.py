"""Step times in the Trainer's log: what the plan predicts beside what the last step took."""

from __future__ import annotations

import functools
from typing import Any

from transformers import Trainer

MARK = "_partita_original"


def install() -> None:
    """Wrap ``Trainer.log``, once. Trainers whose engine runs no plan log what they logged before."""
    original = Trainer.log
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def log(self: Trainer, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs = {**logs, **_times(getattr(self, "deepspeed", None))}
        original(self, logs, *args, **kwargs)

    setattr(log, MARK, original)
    Trainer.log = log


def _times(engine: Any) -> dict[str, float]:
    """Of the last optimizer step, in seconds; nothing for an engine without a plan."""
    predicted = getattr(engine, "predicted_step_seconds", None)
    if predicted is None:
        return {}
    taken = {} if engine.step_seconds is None else {"step_seconds": engine.step_seconds}
    return {**taken, "predicted_step_seconds": predicted}
