"""Models with branches: the planner's stages in the order that goes by their graph."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from partita.cluster import parse_cluster
from partita.graph import Graph
from partita.planner.joint.plan import solve
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from partita.ranking import branched, ranked
from tests.branches import Branches

WIDTH, TOKENS = 1024, 256


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


def graph() -> Graph:
    example = {"x": torch.zeros(1, TOKENS, WIDTH), "y": torch.zeros(1, TOKENS, 3 * WIDTH)}
    return capture_module(
        lambda: Branches(Layer, 4, nn.Linear(3 * WIDTH, 3 * WIDTH)), example, name="towers", dtype=torch.bfloat16
    ).graph


def problem(target: str) -> Problem:
    return Problem(graph(), parse_cluster("1x3xa100-80gb"), 48, target=target, fix={"pp": 3})


def test_branches_go_side_by_side_and_hold_less_in_the_same_time():
    asked = problem("partita")
    found = ranked(solve(asked))
    assert (found.schedule, found.order.arguments) == ("kfkb", {"k": 1})
    held = [stage.in_flight for stage in found.predicted.breakdown.stages]
    assert held == [2, 2, 1]
    assert "they hold 2, 2 and 1 micro-batches" in found.reasons[-1]
    assert "as a chain (1f1b) 3, 2 and 1" in found.reasons[-1]


def test_a_target_that_knows_chains_alone_keeps_1f1b():
    assert ranked(solve(problem("deepspeed"))).schedule == "1f1b"


def test_a_schedule_that_is_held_stays():
    asked = problem("partita")
    plan = ranked(solve(replace(asked, fix={"pp": 3, "schedule": "1f1b"})))
    assert plan.schedule == "1f1b"
    assert branched(replace(asked, fix={"pp": 3, "schedule": "1f1b"}), plan) is None
    assert branched(asked, plan) is not None
