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

WIDTH, TOKENS = 1024, 256


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Towers(nn.Module):
    """Towers of four layers on one input, and a joint head."""

    def __init__(self, towers: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.ModuleList(Layer() for _ in range(4)) for _ in range(towers))
        self.head = nn.Linear(towers * WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made = []
        for tower in self.towers:
            found = x
            for layer in tower:
                found = layer(found)
            made.append(found)
        return (self.head(torch.cat(made, dim=-1)) - y).square().mean()


def graph(towers: int) -> Graph:
    example = {"x": torch.zeros(1, TOKENS, WIDTH), "y": torch.zeros(1, TOKENS, 3 * WIDTH)}
    return capture_module(lambda: Towers(towers), example, name="towers", dtype=torch.bfloat16).graph


def problem(towers: int, target: str) -> Problem:
    return Problem(graph(towers), parse_cluster("1x3xa100-80gb"), 48, target=target, fix={"pp": 3})


def test_branches_go_side_by_side_and_hold_less_in_the_same_time():
    asked = problem(3, "partita")
    found = ranked(solve(asked))
    assert (found.schedule, found.order.arguments) == ("kfkb", {"k": 1})
    held = [stage.in_flight for stage in found.predicted.breakdown.stages]
    assert held == [2, 2, 1]
    assert "they hold 2, 2 and 1 micro-batches" in found.reasons[-1]
    assert "as a chain (1f1b) 3, 2 and 1" in found.reasons[-1]


def test_a_target_that_knows_chains_alone_keeps_1f1b():
    assert ranked(solve(problem(3, "deepspeed"))).schedule == "1f1b"


def test_a_schedule_that_is_held_stays():
    asked = problem(3, "partita")
    plan = ranked(solve(replace(asked, fix={"pp": 3, "schedule": "1f1b"})))
    assert plan.schedule == "1f1b"
    assert branched(replace(asked, fix={"pp": 3, "schedule": "1f1b"}), plan) is None
    assert branched(asked, plan) is not None
