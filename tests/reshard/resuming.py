"""What ranks do: train under one plan and save, go on under another."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita.adapters.torch.checkpoint import save_checkpoint
from partita.adapters.torch.resume import load_checkpoint
from tests.failures.saving import full, said
from tests.runtime.engines import Case
from tests.runtime.models import MODELS
from tests.runtime.training import Part, dense_model, global_batch


def losses(part: Part, case: Case, steps: Sequence[int]) -> list[float]:
    return [part.step(global_batch(case, step)) for step in steps]


def train_and_save(case: Case, folder: str) -> list[float]:
    """Two steps, a checkpoint, two more: the losses of these."""
    part = Part(case, dense_model(case).state_dict())
    losses(part, case, (0, 1))
    save_checkpoint(part.runtime, part.engine, folder, {"mine": [1, "two"]})
    return losses(part, case, (2, 3))


def fresh(case: Case) -> Part:
    """Other weights, another place in the random numbers."""
    torch.manual_seed(1)
    part = Part(case, MODELS[case.model].build().state_dict())
    part.runtime.seed = 17
    return part


def resume(case: Case, folder: str) -> tuple[list[float], dict]:
    """Losses of the two steps after the checkpoint's, and what the caller saved with it."""
    part = fresh(case)
    state = load_checkpoint(part.runtime, part.engine, folder)
    return losses(part, case, (2, 3)), state


def fails(case: Case, folder: str, fails_on: int) -> tuple[list[float], list[str]]:
    """A checkpoint, and saves that fail: on one rank the disk is full, a folder of something else, a function in the
    state. What is said; and losses of two more steps, and of the same two after loading what was saved first."""
    part = Part(case, dense_model(case).state_dict())
    losses(part, case, (0,))
    save_checkpoint(part.runtime, part.engine, folder)
    words = []
    with full(part.groups.rank == fails_on):
        words.append(said(lambda: save_checkpoint(part.runtime, part.engine, folder)))
        words.append(said(lambda: save_checkpoint(part.runtime, part.engine, f"{folder}.new")))
    words.append(said(lambda: save_checkpoint(part.runtime, part.engine, f"{folder}.mine")))
    words.append(said(lambda: save_checkpoint(part.runtime, part.engine, folder, {"mine": lambda: None})))
    found = losses(part, case, (1, 2))
    again = fresh(case)
    load_checkpoint(again.runtime, again.engine, folder)
    found += losses(again, case, (1, 2))
    # A new one takes the place of that which is there.
    save_checkpoint(part.runtime, part.engine, folder)
    found += losses(part, case, (3,))
    later = fresh(case)
    load_checkpoint(later.runtime, later.engine, folder)
    return found + losses(later, case, (3,)), words


def broken(case: Case, folders: Sequence[str], parameters: str) -> tuple[list[str], list[float], list[float]]:
    """What is said of checkpoints that can't be loaded. Losses of a step without them, after them, and after the
    parameters alone of a checkpoint."""
    part, untouched = fresh(case), fresh(case)
    words = [said(lambda folder=folder: load_checkpoint(part.runtime, part.engine, folder)) for folder in folders]
    found = losses(untouched, case, (2, 3)), losses(part, case, (2, 3))
    alone = fresh(case)
    load_checkpoint(alone.runtime, alone.engine, parameters, optimizer=False)
    assert not any(optimizer.state for optimizer in alone.engine.optimizers.values())
    assert found[0] == found[1]
    return words, found[0], losses(alone, case, (2,))
