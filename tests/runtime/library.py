"""What a rank does for a plan of the library: train its stages, and the whole model beside them.

Unlike ``training``, a rank may serve several stages here, and axes other than data and tensor may divide a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.prepare import Lowered, Prepared, prepare
from partita.adapters.torch.weights import StateDict, cut
from partita.cluster import parse_cluster
from partita.draft import drafted
from partita.drafted import plan_function
from partita.plan import Plan
from partita.plugins.capture_torch import Captured
from partita.problem import Problem
from partita.spacetime.lower import lower
from partita.spacetime.program import Task
from tests.ranks.captures import kept_capture
from tests.runtime.models import MODELS, Batch, Model, micro_batches, tokens

STEPS = 3


@dataclass(frozen=True)
class Row:
    """A plan by its name or as file.py:name, with its numbers; ``copies`` are data-parallel."""

    plan: str
    devices: int
    model: str = "gpt2"
    numbers: Mapping[str, int] = field(default_factory=dict)
    copies: int = 1
    micro_batches: int = 4


@dataclass
class Outcome:
    """What one rank saw: losses of the plan and of the whole model; the stages that it serves; the tasks that ran.

    ``gradients`` (of every step) and ``weights`` (after the last): by stage and name the largest difference from this
    rank's part of the whole. ``pieces``: which of how many pieces of each trained parameter it had.
    """

    losses: list[float] = field(default_factory=list)
    dense_losses: list[float] = field(default_factory=list)
    stages: tuple[int, ...] = ()
    tasks: list[Task] = field(default_factory=list)
    queue: tuple[Task, ...] = ()
    gradients: dict[tuple[int, str], float] = field(default_factory=dict)
    weights: dict[tuple[int, str], float] = field(default_factory=dict)
    pieces: dict[str, tuple[int, int]] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)
    # Of the whole program: turns inside blocks, and the axes of space inside a copy that have more than one device.
    turns: int = 0
    axes: tuple[str, ...] = ()
    # The blocks of each stage that are computed again.
    recomputed: list[int] = field(default_factory=list)


def evoformer() -> nn.Module:
    """The smallest Evoformer stack, of two blocks, run three times."""
    from partita.recipes.alphafold2.model import AlphaFold2
    from partita.recipes.alphafold2.sizes import SIZES

    return AlphaFold2(replace(SIZES["alphafold2-tiny"], blocks=2))


def alignments(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    from partita.recipes.alphafold2.alignments import Alignments
    from partita.recipes.alphafold2.sizes import SIZES

    return Alignments(SIZES["alphafold2-tiny"], generator.initial_seed() % 1000).batch(0, samples)


def mixture() -> nn.Module:
    """The recipe's mixture of experts, with two layers."""
    from partita.recipes.mixture.model import MixtureOfExperts
    from partita.recipes.mixture.sizes import SIZES

    return MixtureOfExperts(replace(SIZES["mixture-tiny"], layers=2))


def texts(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    found = tokens(samples, generator, padded)
    return {name: found[name] for name in ("input_ids", "labels")}


KINDS: Mapping[str, Model] = {**MODELS, "evoformer": Model(evoformer, alignments, 1), "mixture": Model(mixture, texts)}


@cache
def capture(model: str) -> Captured:
    kind = KINDS[model]
    return kept_capture(kind.build, kind.batch(kind.samples, torch.Generator(), False), name=model, dtype=torch.float64)


def plan_of(row: Row) -> Plan:
    """The row's plan, in float64, for Partita's own runtime."""
    graph = capture(row.model).graph
    problem = Problem(
        graph, parse_cluster("cpu", row.devices), row.copies * row.micro_batches * KINDS[row.model].samples,
        precision="fp64", target="partita",
    )  # fmt: skip
    return drafted(plan_function(row.plan), row.plan, problem, {**row.numbers, "micro_batches": row.micro_batches})


def train(row: Row) -> Outcome:
    """Three steps of Adam of both, on the same batches and from the same weights."""
    captured = capture(row.model)
    return train_both(KINDS[row.model], Lowered(captured, lower(captured.graph, plan_of(row))))


def train_both(kind: Model, lowered: Lowered, padded: bool = False) -> Outcome:
    """The same for any program of a model."""
    program = lowered.program
    torch.manual_seed(0)
    model = kind.build().double()
    dense = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    adam = torch.optim.Adam(dense.values(), lr=1e-2)
    weights = StateDict(model.state_dict(), lowered.captured.graph.aliases)
    prepared = prepare(lowered, weights=weights)
    runtime, stages = prepared.runtime, prepared.stages
    engine = TorchEngine(stages, prepared.groups, optimizers(stages, lambda p: torch.optim.Adam(p.values(), lr=1e-2)))
    copy, share = program.places[prepared.groups.rank][0].data, program.share(prepared.groups.rank)
    outcome = Outcome(
        stages=tuple(stages), queue=runtime.queue, trained=list(dense),
        turns=sum(len(segment.regions) for piece in program.pieces for segment in piece.segments),
        axes=tuple(axis.name for axis in program.inner[0] if axis.size > 1),
        recomputed=[sum(segment.recompute for segment in piece.segments) for piece in program.pieces],
    )  # fmt: skip
    for number, optimizer in engine.optimizers.items():
        optimizer.register_step_pre_hook(partial(_look, prepared, number, dense, outcome))
    for step in range(STEPS):
        runtime.observe = outcome.tasks.append if step == 0 else None
        batch = kind.batch(program.global_batch, torch.Generator().manual_seed(step), padded)
        loss = model(**batch)
        loss = loss if isinstance(loss, Tensor) else loss.loss
        loss.backward()
        outcome.losses.append(runtime.step(micro_batches(batch, share, copy), engine))
        outcome.dense_losses.append(loss.item())
        adam.step()
        adam.zero_grad()
    for number, stage in stages.items():
        # In one order on all ranks: chunks are put together.
        for name in [name for name in dense if name in stage.parameters_by_name]:
            found, divided = stage.parameters_by_name[name].detach(), stage.divided(name)
            if divided is not None and divided.zero == 3:
                found = divided.together(found)
            wanted = _part(prepared, number, name, dense[name].detach())
            outcome.weights[number, name] = _distance(found, wanted)
    return outcome


def assert_one_device(outcomes: Sequence[Outcome]) -> None:
    """Losses, every gradient and the weights of all ranks are one device's, and nothing is missing."""
    for outcome in outcomes:
        assert len(outcome.losses) == STEPS
        assert outcome.losses == outcomes[0].losses
        assert outcome.losses == pytest.approx(outcome.dense_losses, rel=1e-13)
        # It learns, and from other batches: no two losses are the same.
        assert len(set(outcome.dense_losses)) == STEPS
        assert tuple(outcome.tasks) == outcome.queue
        for found in (outcome.gradients, outcome.weights):
            assert {key: error for key, error in found.items() if not error <= 1e-10} == {}
    # All pieces of every trained parameter were compared.
    pieces: dict[str, set[tuple[int, int]]] = {}
    for outcome in outcomes:
        for name, piece in outcome.pieces.items():
            pieces.setdefault(name, set()).add(piece)
    assert sorted(pieces) == sorted(outcomes[0].trained)
    assert all({own for own, _ in held} == set(range(count)) for held in pieces.values() for _, count in held)
    assert {name for outcome in outcomes for _, name in outcome.weights} == {*outcomes[0].trained}


def _look(prepared: Prepared, number: int, dense: Mapping[str, nn.Parameter], outcome: Outcome, *_: object) -> None:
    """Before a stage's optimizer steps: how far are its gradients from this rank's part of the whole model's?"""
    program, rank = prepared.lowered.program, prepared.groups.rank
    stage = prepared.stages[number]
    for name, leaf in stage.updated.items():
        whole, mine = dense[name].grad, leaf.grad
        assert whole is not None
        assert mine is not None
        if (divided := stage.divided(name)) is not None:
            mine = divided.together(mine)
        error = _distance(mine, _part(prepared, number, name, whole))
        outcome.gradients[number, name] = max(error, outcome.gradients.get((number, name), 0.0))
        shard = program.pieces[number].parameters[name]
        at = program.coordinates(rank, number)
        outcome.pieces[name] = (at[shard.axis], shard.pieces) if shard else (0, 1)


def _part(prepared: Prepared, number: int, name: str, whole: Tensor) -> Tensor:
    program = prepared.lowered.program
    shard = program.pieces[number].parameters[name]
    at = program.coordinates(prepared.groups.rank, number)
    return cut(whole, shard, at[shard.axis] if shard else 0)


def _distance(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())
