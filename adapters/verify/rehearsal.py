"""Train a program on virtual devices: the runtime, the engine and the stages that run on ranks, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.prepare import Lowered, make_stages
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import Weights
from partita.adapters.verify.batch import Batches
from partita.adapters.verify.devices import Cast
from partita.adapters.verify.one_device import adam, gradient_of
from partita.spacetime.program import Task

# Sees a device's stages before it trains: may put other calls in the place of ops.
Prepare = Callable[[int, Mapping[int, StageModule]], None]


@dataclass(frozen=True)
class Held:
    """What one device has of a stage: gradients of each step and parameters after the last, its own parts, as the model
    keeps them; ``copies`` are parameters that another stage updates."""

    losses: list[float]
    gradients: dict[int, list[dict[str, Tensor]]]
    parameters: dict[int, dict[str, Tensor]]
    copies: dict[int, dict[str, Tensor]]


@dataclass(frozen=True)
class Rehearsal:
    """What every device has at the end, and the bytes that it has sent to others: in messages, and to collectives."""

    held: dict[int, Held]
    sent: dict[int, int]
    shared: dict[int, int]


def rehearse(
    lowered: Lowered, weights: Weights, batches: Batches, steps: Sequence[Mapping[str, Any]], seed: int,
    prepare: Prepare | None = None,
) -> Rehearsal:  # fmt: skip
    """Train on the global batches ``steps``. PlanError where devices wait for each other for ever, or a task fails."""
    program, device = lowered.program, torch.device("cpu")
    cast = Cast(program)

    def part(number: int, groups: Groups) -> Held:
        stages = make_stages(lowered, groups, weights, seed, device)
        if prepare is not None:
            prepare(number, stages)

        def now(task: Task) -> None:
            cast.now[number] = task

        runtime = Runtime(program, stages, groups, device=device, seed=seed, observe=now)
        made = optimizers(stages, adam)
        seen: dict[int, list[dict[str, Tensor]]] = {stage: [] for stage in stages}
        for stage, optimizer in made.items():
            optimizer.register_step_pre_hook(_look(seen[stage], stages[stage]))
        engine, losses = TorchEngine(stages, groups, made), []
        for batch in steps:
            mine = batches.micro_batches(batch, program.share(number), program.places[number][0].data)
            losses.append(runtime.step(mine, engine))
            cast.now.pop(number)
        after = {stage: _values(module, module.trained) for stage, module in stages.items()}
        return Held(losses, seen, after, {s: _values(m, m.piece.copies) for s, m in stages.items()})

    held = cast.play(part)
    return Rehearsal(held, cast.world.sent, cast.world.shared)


def _look(seen: list[dict[str, Tensor]], stage: StageModule) -> Callable[..., None]:
    """Keeps the gradients that the optimizer is about to apply."""

    def look(*_: object) -> None:
        found = {name: gradient_of(leaf) for name, leaf in stage.updated.items()}
        seen.append({n: divided.together(g) if (divided := stage.divided(n)) else g for n, g in found.items()})

    return look


def _values(stage: StageModule, names: Iterable[str]) -> dict[str, Tensor]:
    found = {}
    for name in names:
        value, divided = stage.parameters_by_name[name].detach().clone(), stage.divided(name)
        found[name] = divided.together(value) if divided is not None and divided.zero == 3 else value
    return found
