"""What ranks do with checkpoints: a few steps under a plan, and saving where one of them can't write."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.failures.train import SAMPLES, TOKENS, WORDS, Model

BASE = {"train_micro_batch_size_per_gpu": SAMPLES, "zero_allow_untested_optimizer": True}
ALONE = {"pipeline": "off", "tensor_parallel": "off"}
PLANS: Mapping[str, dict[str, Any]] = {
    "pp2": {"partita": {"fix": {"pp": 2}}},
    "dp2 zero0": {"zero_optimization": {"stage": 0}, "partita": ALONE},
    "dp2 zero1": {"zero_optimization": {"stage": 1}, "partita": ALONE},
    "dp2 zero3": {
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "partita": ALONE,
    },
}
# More than the file in which ranks find each other, less than any file of weights.
LIMIT_BYTES = 10_000

Outcome = tuple[list[float], list[str]]


def start(plan: str) -> Any:
    import deepspeed

    import partita.adapters.deepspeed  # noqa: F401  the key is noticed

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config={**BASE, **PLANS[plan]})[0]


def steps(engine: Any, numbers: Sequence[int]) -> list[float]:
    losses = []
    for step in numbers:
        words = torch.randint(
            0, WORDS, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(100 * step + engine.global_rank)
        )
        loss = engine(words, words)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@contextmanager
def full(here: bool) -> Iterator[None]:
    """Inside, the system lets this process write no file beyond ``LIMIT_BYTES``, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def said(action: Callable[[], object]) -> str:
    """What the action raises, in its words."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


WRITES: Mapping[str, Callable[[Any, str], object]] = {
    "checkpoint": lambda engine, folder: engine.save_checkpoint(folder),
    "checkpoint of the same name": lambda engine, folder: engine.save_checkpoint(folder, tag="global_step2"),
    "checkpoint into a file": lambda engine, folder: engine.save_checkpoint(f"{folder}/file/out"),
    "a function in it": lambda engine, folder: engine.save_checkpoint(folder, client_state={"mine": lambda: None}),
    "model": lambda engine, folder: engine.save_model(f"{folder}/dense"),
    "dense state": lambda engine, folder: engine.save_16bit_model(f"{folder}/dense"),
}


def failing_writes(plan: str, writes: Sequence[str], fails: int, folder: str) -> Outcome:
    """Two steps, a checkpoint, two more, writes that each fail on one rank; what every rank says, and the losses of
    the steps from the checkpoint on: as they were, and after loading what ``latest`` names."""
    engine = start(plan)
    steps(engine, range(2))
    engine.save_checkpoint(folder)
    losses = steps(engine, range(2, 4))
    words = []
    for write in writes:
        with full(engine.global_rank == fails):
            words.append(said(lambda write=write: WRITES[write](engine, folder)))
    # Who heard of it can go on.
    losses += steps(engine, range(4, 6))
    engine = start(plan)
    engine.load_checkpoint(folder)
    return losses + steps(engine, range(2, 6)), words


def broken_loads(plan: str, checkpoints: Sequence[tuple[str, str | None]]) -> Outcome:
    """What is said of loads that fail, of folders and tags; losses of two steps after them, and of two steps without
    them: nothing was loaded."""
    engine = start(plan)
    words = [said(lambda folder=folder, tag=tag: engine.load_checkpoint(folder, tag)) for folder, tag in checkpoints]
    return steps(engine, range(2)) + steps(start(plan), range(2)), words


def save_twice(plan: str, folder: str) -> Outcome:
    """Checkpoints after one step and after two; a file of the user's own is in the second's folder already."""
    engine = start(plan)
    losses = []
    for step in range(2):
        losses += steps(engine, [step])
        assert engine.save_checkpoint(folder, client_state={"mine": step}) is True
    return losses, []


def differing_tags(plan: str, folder: str) -> Outcome:
    engine = start(plan)
    return [], [said(lambda: engine.save_checkpoint(folder, tag=f"of rank {engine.global_rank}"))]


def resumed(plan: str, folder: str, tag: str) -> Outcome:
    engine = start(plan)
    path, state = engine.load_checkpoint(folder, tag)
    return steps(engine, [1]), [str(Path(path).parent.name), str(state["mine"])]
