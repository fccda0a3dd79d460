"""A plan of the planner's whose stages have micro-batches of their own, on virtual devices beside one device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partita.adapters.verify.planned import verify_plan
from partita.cluster import parse_cluster
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from partita.ranking import planned

NARROW, WIDE, TOKENS = 8, 256, 32


class Unequal(nn.Module):
    """Sixty small layers for one token beside eight wide ones for many, and a head that reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.ModuleList(nn.Linear(NARROW, NARROW) for _ in range(60))
        self.large = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(8))
        self.head = nn.Linear(NARROW + WIDE, NARROW)

    def forward(self, x: Tensor, y: Tensor, wanted: Tensor) -> Tensor:
        for layer in self.small:
            x = torch.tanh(layer(x))
        for layer in self.large:
            y = torch.tanh(layer(y))
        return (self.head(torch.cat([x, y.mean(1)], dim=-1)) - wanted).square().mean()


def example(samples: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"x": (NARROW,), "y": (TOKENS, WIDE), "wanted": (NARROW,)}
    return {name: torch.randn(samples, *shape, generator=draw) for name, shape in shapes.items()}


@pytest.mark.slow
def test_stages_with_micro_batches_of_their_own_are_one_device():
    graph = capture_module(Unequal, example(1), name="unequal", dtype=torch.float32).graph
    fix = {"pp": 3, "tp": 1, "dp": 1}
    plan = planned(Problem(graph, parse_cluster("1x3xcpu"), 16, "fp32", target="partita", fix=fix))
    assert len({stage.micro_batches for stage in plan.stages}) == 2, plan.reasons[-1]
    verdict = verify_plan(plan, Unequal, example, "own sizes")
    assert verdict.equal, verdict.difference
    assert len(set(verdict.losses)) == verdict.steps == 3
