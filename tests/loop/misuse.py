"""Wrong uses of an engine, each on one rank or on all: what every rank is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from tests.loop.models import SEQ, Batch, batches, build
from tests.loop.play import Case, initialize, sgd

LAST = -1


def wrong_dtype(batch: Batch) -> dict[str, Any]:
    return {**batch, "input_ids": batch["input_ids"].double()}


def no_samples(batch: Batch) -> dict[str, Any]:
    return {name: value[:0] for name, value in batch.items()}


def nested(batch: Batch) -> dict[str, Any]:
    return {"input_ids": {"tokens": batch["input_ids"]}, "labels": batch["labels"]}


def samples_that_differ(batch: Batch) -> dict[str, Any]:
    return {**batch, "labels": batch["labels"][:3]}


def nothing_to_learn(batch: Batch) -> dict[str, Any]:
    return {**batch, "labels": torch.full_like(batch["labels"], -100)}


MISUSES: dict[str, Callable[[Batch], dict[str, Any]]] = {
    one.__name__: one for one in (wrong_dtype, no_samples, nested, samples_that_differ, nothing_to_learn)
}


def misused(plan: str, names: list[str], everywhere: bool) -> list[tuple[str, str, float]]:
    """For each misuse, on the last rank or everywhere, the error's class and words, and the loss of a right call after
    it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build("gpt2")
    engine = initialize(model, Case("", plan), optimizer=sgd(model))
    found = []
    for name in names:
        batch = batches(model, 0, [4] * ranks, [SEQ] * ranks)[rank]
        try:
            engine(**(MISUSES[name](batch) if everywhere or rank == ranks - 1 else batch))
            kind, words = "", "nothing was raised"
        except Exception as error:
            kind, words = type(error).__name__, str(error)
        found.append((kind, words, float(engine(**batch).loss)))
    return found


def at_the_engine(plan: str) -> dict[str, str]:
    """What an engine refuses, by what was tried."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build("gpt2")
    engine = initialize(model, Case("", plan, config={"gradient_accumulation_steps": 2}), optimizer=sgd(model))
    batch = batches(model, 0, [4] * ranks)[rank]

    def twice() -> None:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.backward(loss)

    tried: dict[str, Callable[[], Any]] = {
        "short iterator": lambda: engine.train_batch(iter([batch])),
        "no loss": lambda: engine.train_batch(iter([{"input_ids": batch["input_ids"]}] * 2)),
        "compile": lambda: engine.compile(),
        "load_state_dict": lambda: engine.module.load_state_dict({}),
        "generate": lambda: engine.module.generate(batch["input_ids"]),
        "logits in training": lambda: engine(**batch).logits.argmax(-1),
        "again": lambda: initialize(model, Case("", plan), optimizer=sgd(model)),
        "twice": twice,
    }
    return {name: raised(action) for name, action in tried.items()}


def uneven_iterators(plan: str) -> tuple[list[str], float]:
    """What a rank is told where the last one's iterator ends early, then raises; and the loss of a right step after."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build("gpt2")
    engine = initialize(model, Case("", plan, config={"gradient_accumulation_steps": 2}), optimizer=sgd(model))
    batch = batches(model, 0, [4] * ranks)[rank]
    last = rank == ranks - 1

    def broken() -> Iterator[Batch]:
        yield batch
        if last:
            raise OSError("the disk is gone")
        yield batch

    told = [
        raised(lambda: engine.train_batch(iter([batch] * (1 if last else 2)))),
        raised(lambda: engine.train_batch(broken())),
    ]
    return told, float(engine.train_batch(iter([batch, batch])))


def at_initialize(plan: str) -> dict[str, str]:
    """What deepspeed.initialize refuses with a key."""
    stranger = torch.nn.Linear(2, 2)

    def used() -> None:
        model = build("gpt2")
        optimizer = sgd(model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        initialize(model, Case("", plan), optimizer=optimizer)

    def foreign() -> None:
        initialize(build("gpt2"), Case("", plan), optimizer=sgd(stranger))

    def foreign_groups() -> None:
        groups = [{"params": stranger.weight}]
        initialize(build("gpt2"), Case("", plan), model_parameters=groups, optimizer=None)

    def hooked() -> None:
        model = build("gpt2")
        model.transformer.wte.register_forward_hook(lambda module, args, output: output)
        initialize(model, Case("", plan), optimizer=sgd(model))

    def misspelt() -> None:
        model = build("gpt2")
        initialize(model, Case("", "", config={"partita": {"clustr": "cpu"}}), optimizer=sgd(model))

    def unfit() -> None:
        model = build("gpt2")
        config = {"zero_optimization": {"stage": 2}, "partita": {"fix": {"tp": 2}}}
        initialize(model, Case("", "", config=config), optimizer=sgd(model))

    def silent() -> None:
        initialize(torch.nn.Sequential(stranger), Case("", plan), optimizer=sgd(stranger))

    return {one.__name__: raised(one) for one in (used, foreign, foreign_groups, hooked, misspelt, unfit, silent)}


def raised(action: Callable[[], Any]) -> str:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def alone_in(what: str, patience: float) -> str:
    """Rank 0 does what all have to do; the others come late."""
    import contextlib
    import io
    import time

    import partita.adapters.torch.loop.together as together

    together.PATIENCE_SECONDS, together.TOLD_SECONDS, together.LOOK_SECONDS = patience, patience / 4, patience / 20
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build("gpt2")
    engine = initialize(model, Case("", "pp2"), optimizer=sgd(model))
    batch = batches(model, 0, [4] * ranks)[rank]
    told = io.StringIO()
    if what == "state_dict":
        waited = engine.loop.together
        waited.patience_seconds = 2 * patience
        dist.barrier()
        # Late, but not too late.
        with contextlib.redirect_stderr(told):
            time.sleep(1.5 * patience * rank)
            engine.module.state_dict()
        # Too late.
        time.sleep(2.5 * patience * rank)
        return told.getvalue() + raised(engine.module.state_dict)
    with contextlib.redirect_stderr(told):
        if rank:
            time.sleep(2 * patience)
        engine(**batch)
    return told.getvalue()
