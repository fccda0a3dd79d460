"""Stages that form a graph: branches on devices of their own, and a stage with blocks of two branches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from partita.adapters.verify.planned import verify_plan
from partita.cluster import parse_cluster
from partita.draft import Draft, drafted, op_assign, op_order, op_trans
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Axis, Plan
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from partita.schedules import Argument
from partita.simulate.predict import predicted
from partita.spacetime.lower import lower_to_time
from tests.branches import Branches

WIDTH, MICRO_BATCHES = 6, 4


class Layer(nn.Module):
    """x + linear(tanh(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(torch.tanh(x))


def build() -> Branches:
    return Branches(Layer, 2, nn.Linear(3 * WIDTH, 1))


def example(samples: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    return {"x": torch.randn(samples, WIDTH, generator=made), "y": torch.randn(samples, 1, generator=made)}


@cache
def graph() -> Graph:
    return capture_module(build, example(2), name="branches").graph


def tower(number: int) -> list[str]:
    """A tower's blocks but for its last, which ``last`` gives."""
    return [f"towers.{number}.{layer}" for layer in range(2)]


# The blocks of each stage.
STAGES: dict[str, list[list[str]]] = {
    "a tower each": [tower(0), tower(1), tower(2), ["head"]],
    "in another order": [tower(1), tower(0), tower(2), ["head"]],
    "halves of two towers": [
        tower(0), ["towers.1.0", "towers.2.0"], ["towers.1.1", "towers.2.1"], ["head"]
    ],
}  # fmt: skip


def plan(stages: list[list[str]], schedule: str = "kfkb", counts: tuple[int, ...] = (), **arguments: Argument) -> Plan:
    def mine(draft: Draft) -> None:
        for device, blocks in enumerate(stages):
            op_assign(draft, blocks, [device])
            op_trans(draft, blocks, "batch", Axis("micro", (counts or (MICRO_BATCHES,) * 9)[device], "turns"))
        op_order(draft, schedule, **arguments)

    problem = Problem(graph(), parse_cluster("1x4xa100-80gb"), 8, precision="fp32", target="partita")
    return drafted(mine, "mine", problem, {})


CASES: dict[str, Callable[[], Plan]] = {
    **{name: (lambda stages=stages: plan(stages)) for name, stages in STAGES.items()},
    "warm-ups of their own": lambda: plan(STAGES["halves of two towers"], depth=(2, 0, 1, 0)),
    "rounds of two": lambda: plan(STAGES["halves of two towers"], k=2),
    "1f1b of a graph": lambda: plan(STAGES["in another order"], "1f1b"),
    "unlike micro-batches": lambda: plan(STAGES["a tower each"], counts=(8, 4, 2, 4)),
}
FAST = ("warm-ups of their own", "unlike micro-batches")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CASES])
def test_a_graph_of_stages_is_one_device(name):
    verdict = verify_plan(CASES[name](), build, example, name)
    assert verdict.equal, verdict.difference
    assert len(set(verdict.losses)) == verdict.steps == 3


def test_towers_side_by_side_hold_two_micro_batches_in_the_same_time():
    """Every tower has the head alone behind it. As a list of stages for 1F1B they would hold 4, 3 and 2."""
    found = predicted(graph(), plan(STAGES["a tower each"]), parse_cluster("1x4xa100-80gb"))
    assert [stage.in_flight for stage in found.predicted.breakdown.stages] == [2, 2, 2, 1]
    listed = predicted(graph(), plan(STAGES["a tower each"], "1f1b"), parse_cluster("1x4xa100-80gb"))
    assert [stage.in_flight for stage in listed.predicted.breakdown.stages] == [4, 3, 2, 1]
    assert found.predicted.step_seconds == pytest.approx(listed.predicted.step_seconds, rel=1e-6)
    less = [listed.predicted.peak_bytes[device] - found.predicted.peak_bytes[device] for device in range(4)]
    assert less[0] > less[1] > less[2] == less[3] == 0


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([["head"], tower(0), tower(1), tower(2)], "stages must come in an order in which each reads what earlier"),
        (
            [["towers.0.0", "towers.1.1"], ["towers.0.1", "towers.1.0"], tower(2), ["head"]],
            "stages must come in an order in which each reads what earlier",
        ),
    ],
    ids=["the head first", "not convex"],
)
def test_stages_that_read_later_ones_are_refused(stages, message):
    with pytest.raises(PlanError, match=message):
        lower_to_time(graph(), plan(stages))
