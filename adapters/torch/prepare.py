"""From a plan and a plain model to what one rank runs: capture at the plan's micro-batch, lower, fill a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from partita.adapters.torch.groups import Groups, make_groups
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import BlockModule, Realise, StageModule
from partita.adapters.torch.weights import Initialised, Weights, fill
from partita.adapters.torch.zero import division_of
from partita.errors import ModelError, PlanError
from partita.graph import Graph
from partita.hooks import plugins
from partita.plan import Plan
from partita.plugins.capture_torch import Captured, capture_module
from partita.spacetime.alike import aligned
from partita.spacetime.lower import lower, shares_of
from partita.spacetime.program import Piece, Program

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Lowered:
    """A plan lowered for a model: the same on every rank.

    ``others`` are the model captured at other numbers of samples, where some stages take those in a turn.
    """

    captured: Captured
    program: Program
    others: tuple[Captured, ...] = ()

    def of(self, stage: int) -> Captured:
        """The model as a stage runs it."""
        samples = self.program.shares[stage].samples
        return next(found for found in (self.captured, *self.others) if found.graph.samples == samples)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The model as each stage runs it."""
        return tuple(self.of(stage).graph for stage in range(len(self.program.pieces)))


@dataclass(frozen=True)
class Prepared:
    """One rank's stages with their weights in place, and the runtime of its queue."""

    lowered: Lowered
    groups: Groups
    stages: Mapping[int, StageModule]
    runtime: Runtime

    @property
    def stage(self) -> StageModule:
        """The stage of a rank that serves one. PlanError where it serves more."""
        return self.runtime.stage


def lower_model(plan: Plan, factory: Callable[[], nn.Module], example: Callable[[int], Mapping[str, Any]]) -> Lowered:
    """Capture the model at the plan's micro-batch, or at each that stages have, and lower the plan.

    ``example(samples)`` gives the model's keyword arguments for that many samples; only their shapes and dtypes count.
    ModelError when none of its outputs can be the loss.
    """
    each = [share.samples for share in shares_of(plan)]
    by_samples = {
        samples: capture_module(factory, example(samples), name=plan.model, dtype=DTYPES[plan.precision])
        for samples in dict.fromkeys(each)
    }
    captured = next(iter(by_samples.values()))
    by_samples = {n: replace(found, graph=aligned(found.graph, captured.graph)) for n, found in by_samples.items()}
    captured, *others = by_samples.values()
    if captured.graph.loss is None:
        raise ModelError(
            f'"{plan.model}" can\'t be trained: none of its outputs is a scalar that depends on a parameter'
        )
    return Lowered(captured, lower([by_samples[samples].graph for samples in each], plan), tuple(others))


def realiser(lowered: Lowered, target: str) -> Realise | None:
    """What realises the ops that tensor parallelism cuts, for a plan of this target; None: torch operators do."""
    found: Realise | None = plugins().hook.partita_realise(target=target) if max(lowered.program.widths) > 1 else None
    return found


def prepare(
    lowered: Lowered,
    *,
    weights: Weights | None = None,
    seed: int = 0,
    device: torch.device | None = None,
    realise: Realise | None = None,
    finish: Callable[[BlockModule, Groups], None] | None = None,
    divides: bool = True,
) -> Prepared:
    """Make this rank's part. Collective over all ranks (process groups). Never builds more than the stage's own blocks.

    ``weights`` are the initial ones; without, the model's own rules initialise them, keyed by ``seed``. ``finish`` sees
    each block once its weights are in place. ``divides``: the program's ZeRO stage is Partita's to carry out, not that
    of a framework around it. PlanError, on every rank, when fewer or more ranks run than the plan has
    devices.
    """
    program = lowered.program
    needed, running = max(program.places) + 1, dist.get_world_size()
    if needed > running:
        raise PlanError(f"the plan runs on {needed} devices, {running} processes were started; start {needed}")
    device = device or torch.device("cpu")
    if idle := sorted({*range(running)} - {*program.places}):
        # Every rank says so: the others would wait for one that left alone.
        raise PlanError(
            f"rank {idle[0]} of {running} has no place in the plan, which uses devices {sorted(program.places)}"
        )
    groups = make_groups(program, device)
    stages = make_stages(lowered, groups, weights, seed, device, realise, finish, divides)
    buffers = lowered.captured.skeleton.saved_buffers
    runtime = Runtime(program, stages, groups, device=device, seed=seed, buffers=buffers)
    return Prepared(lowered, groups, stages, runtime)


def make_stages(
    lowered: Lowered,
    groups: Groups,
    weights: Weights | None,
    seed: int,
    device: torch.device,
    realise: Realise | None = None,
    finish: Callable[[BlockModule, Groups], None] | None = None,
    divides: bool = True,
) -> dict[int, StageModule]:
    """The stages that a device serves, with their weights. A parameter that several of them read is there once."""
    program = lowered.program
    source = weights or Initialised(lowered.captured.skeleton, seed)
    filled: set[str] = set()
    parameters: dict[str, nn.Parameter] = {}
    division = division_of(program, groups, realise is not None) if divides else None
    stages = {}
    for place in program.places[groups.rank]:
        piece, coordinates = program.pieces[place.stage], program.coordinates(groups.rank, place.stage)
        captured = lowered.of(place.stage)

        def complete(block: BlockModule, piece: Piece = piece, at: Mapping[str, int] = coordinates) -> None:
            fresh = {name: p for name, p in block.read.items() if name not in filled}
            fill(fresh, source, piece.parameters, at, block.flipped)
            filled.update(fresh)
            if division is not None:
                # Block by block: with ZeRO 3 no more than one is ever whole.
                division.divide(piece.stage, block.read)
            if finish is not None:
                finish(block, groups)

        stage = stages[place.stage] = StageModule(
            captured.graph, piece, buffers=captured.buffers, device=device, groups=groups.axes[place.stage],
            coordinates=coordinates, parameters=parameters, division=division, realise=realise, finish=complete,
        )  # fmt: skip
        parameters.update(stage.parameters_by_name)
    return stages
