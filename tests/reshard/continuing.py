"""What ranks do in the tests of DeepSpeed checkpoints that move: train and save under one plan, go on under another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from partita.adapters.checkpoint.convert import plan_outputs
from partita.adapters.checkpoint.reshard import Done, write_outputs
from partita.adapters.checkpoint.sources import read_checkpoint
from partita.adapters.checkpoint.target import Target, require_model, target
from partita.plan import Plan
from tests.runtime.engines import TARGETS, Case
from tests.runtime.models import MODELS
from tests.runtime.programs import plan
from tests.runtime.training import PRECISIONS, Part, capture, dense_model, global_batch

BEFORE, AFTER = (0, 1), (2, 3)


def planned(case: Case) -> Plan:
    """The case's plan, as its engine makes it."""
    graph = capture(case.model, case.dtype).graph
    return replace(plan(graph, case.layout, PRECISIONS[case.dtype]), target=TARGETS[case.engine])


def target_of(case: Case) -> Target:
    return target(planned(case), capture(case.model, case.dtype).graph)


def moved(checkpoint: Path, case: Case, out: Path) -> Done:
    """Write a checkpoint for the case's plan, in this process."""
    goal = target_of(case)
    catalogue = read_checkpoint(checkpoint, None)
    require_model(catalogue, goal.graph)
    return write_outputs(plan_outputs(catalogue, goal), out, "")


def trained(case: Case, folder: str, save_model: bool = False) -> list[float]:
    """Losses of the steps after a checkpoint was saved, without a stop."""
    part = Part(case, dense_model(case).state_dict())
    for step in BEFORE:
        part.step(global_batch(case, step))
    part.engine.save_checkpoint(folder, client_state={"mine": [case.model]})
    if save_model:
        part.engine.save_model(f"{folder}/dense")
    return [part.step(global_batch(case, step)) for step in AFTER]


def continued(case: Case, folder: str, optimizer: bool = True) -> tuple[list[float], int, object]:
    """Losses of the same steps of an engine that begins with other weights and loads; its steps, the client's state."""
    torch.manual_seed(1)
    part = Part(case, MODELS[case.model].build().state_dict())
    _, client = part.engine.load_checkpoint(folder, load_optimizer_states=optimizer)
    steps = part.engine.global_steps
    return [part.step(global_batch(case, step)) for step in AFTER], steps, client.get("mine")


def fresh(case: Case) -> list[float]:
    """The losses of the same steps on one device, of weights that nothing was loaded into."""
    torch.manual_seed(1)
    model = MODELS[case.model].build()
    return [model(**global_batch(case, step)).item() for step in AFTER]


PLAIN_SHAPES = {"0.weight": (7, 5), "0.bias": (7,), "2.weight": (5, 7), "2.bias": (5,)}


def plain_deepspeed(zero: int, folder: str) -> None:
    """Two steps of a small model with DeepSpeed alone, and its checkpoint."""
    import deepspeed
    from torch import nn

    from partita.adapters.deepspeed.initialize import connect
    from tests.runtime.engines import forget_earlier_engines

    forget_earlier_engines()
    connect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5))
    config = {
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": zero}, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in BEFORE:
        loss = engine(torch.randn(2, 5).bfloat16()).square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder)


def continued_from(case: Case, dense: str) -> list[float]:
    """Losses of the same steps of an engine that is made with the weights of a file."""
    from safetensors.torch import load_file

    part = Part(case, load_file(dense))
    # Batches by step; draws of dropout are keyed by the engine's own count, from 0.
    return [part.step(global_batch(case, step)) for step in AFTER]


def saved_over(case: Case, folder: str, tag: str) -> tuple[float, float]:
    """The loss of the step after a checkpoint that is saved in the place of the one that was loaded; the same loss of
    an engine that loads it."""
    losses = []
    for first in (True, False):
        part = Part(case, dense_model(case).state_dict())
        part.engine.load_checkpoint(folder, tag=tag)
        if first:
            part.step(global_batch(case, AFTER[0]))
            part.engine.save_checkpoint(folder, tag=tag)
        losses.append(part.step(global_batch(case, AFTER[1])))
    return losses[0], losses[1]


def refused(case: Case, folder: str) -> tuple[str, list[float]]:
    """What is said of a load that fails, and the loss of a step after it, beside that of an engine that never loads."""
    from partita.errors import InputError

    losses, said = [], ""
    for loads in (True, False):
        part = Part(case, dense_model(case).state_dict())
        if loads:
            try:
                part.engine.load_checkpoint(folder)
            except InputError as error:
                said = str(error)
        losses.append(part.step(global_batch(case, 0)))
    return said, losses
