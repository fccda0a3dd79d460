"""Models whose branches are stages of their own: training is that of one device.

All rows on virtual devices, all on real ranks in float64, and some through DeepSpeed's engine, which computes in
float32. Then what a user is told whose loss doesn't read a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from partita.adapters.torch.weights import StateDict
from partita.adapters.verify.prove import verify_program
from partita.errors import ModelError
from partita.plugins.capture_torch import capture_module
from tests.ranks.pool import Pool
from tests.runtime.dag_models import DAGS, SAMPLES, Batch, Unread, example_of, lowered, plan_of, two
from tests.runtime.engines import ENGINES, Case
from tests.runtime.library import STEPS, Outcome, assert_one_device, train_both
from tests.runtime.models import Model, micro_batches
from tests.runtime.programs import Layout

DEEPSPEED = (
    "diamond", "fan-out of three", "two towers", "frozen tower", "integers and a mask", "several losses",
    "diamond, unlike micro-batches", "frozen part of a tower", "weight shared by branches", "six stages",
)  # fmt: skip
# What `make test-fast` runs on virtual devices.
FAST = (
    "diamond, unlike micro-batches",
    "frozen tower",
    "weight shared by branches",
    "integers and a mask",
    "several losses",
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in DAGS])
def test_on_virtual_devices(name: str) -> None:
    dag = DAGS[name]
    verdict = verify_program(lowered(name), dag.build, example_of(dag))
    assert verdict.equal, verdict.difference
    assert verdict.devices == dag.devices
    assert len(set(verdict.losses)) == verdict.steps == 3


def train(name: str) -> Outcome:
    """What a rank does."""
    dag = DAGS[name]

    def batch(samples: int, generator: torch.Generator, padded: bool) -> Batch:
        return {name: value.double() for name, value in dag.batch(samples, generator, padded).items()}

    return train_both(Model(dag.build, batch), lowered(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", DAGS)
def test_on_real_ranks(pool: Pool, name: str) -> None:
    dag = DAGS[name]
    outcomes = pool.run(train, dag.devices, name)
    assert_one_device(outcomes)
    assert {stage for outcome in outcomes for stage in outcome.stages} == set(range(len(dag.stages)))
    assert all(len(outcome.stages) == 1 for outcome in outcomes)


@dataclass
class Beside:
    """One rank of DeepSpeed's engine beside one device: losses, and (norm of the difference, norm) of what it has."""

    losses: list[float] = field(default_factory=list)
    dense_losses: list[float] = field(default_factory=list)
    gradients: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)
    weights: dict[str, tuple[float, float]] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)


def train_by_deepspeed(name: str) -> Beside:
    """What a rank does: three steps of plain SGD of both."""
    dag, found = DAGS[name], lowered(name, "fp32", "deepspeed")
    torch.manual_seed(0)
    model = dag.build()
    dense = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sgd = torch.optim.SGD(dense.values(), lr=0.1)
    seen: dict[str, Tensor] = {}
    weights = StateDict(model.state_dict(), found.captured.graph.aliases)
    case = Case(name, Layout(), optimizer="sgd", config={"zero_allow_untested_optimizer": True})
    built = ENGINES["deepspeed"](case, plan_of(name, "fp32", "deepspeed"), found, weights, seen)
    program, rank = found.program, built.groups.rank
    outcome = Beside(trained=set(dense))
    for step in range(STEPS):
        batch = dag.batch(SAMPLES, torch.Generator().manual_seed(step), False)
        mine: Iterator[Batch] = micro_batches(batch, program.share(rank), program.places[rank][0].data)
        outcome.losses.append(built.train_batch(mine))
        loss = model(**batch)
        loss.backward()
        outcome.dense_losses.append(loss.item())
        outcome.gradients |= {(step, name): _off(gradient, dense[name].grad) for name, gradient in seen.items()}
        sgd.step()
        sgd.zero_grad()
    outcome.weights = {name: _off(weight, dense[name].detach()) for name, weight in built.weights().items()}
    return outcome


def _off(found: Tensor, wanted: Tensor | None) -> tuple[float, float]:
    assert wanted is not None
    return float((found - wanted).norm()), float(wanted.norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEPSPEED)
def test_through_the_engine_of_deepspeed(pool: Pool, name: str) -> None:
    outcomes = pool.run(train_by_deepspeed, DAGS[name].devices, name, timeout=120)
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(outcome.dense_losses, rel=1e-5)
        assert len(set(outcome.losses)) == STEPS
        for errors in (outcome.gradients, outcome.weights):
            assert {key: off for key, off in errors.items() if not off[0] <= 1e-5 * off[1]} == {}
    assert {name for outcome in outcomes for name in outcome.weights} == outcomes[0].trained
    assert {key for o in outcomes for key in o.gradients} == {(s, n) for s in range(STEPS) for n in outcomes[0].trained}


def test_a_tower_that_the_loss_does_not_read_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"the loss does not depend on: text\.linear\.weight, text\.linear\.bias;"):
        capture_module(Unread, two(2, torch.Generator()), name="unread")


def test_one_that_is_frozen_is_left_out() -> None:
    graph = capture_module(lambda: Unread(frozen=True), two(2, torch.Generator()), name="unread").graph
    assert [block.name for block in graph.blocks] == ["image", "head"]
