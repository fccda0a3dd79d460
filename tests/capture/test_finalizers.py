"""What the garbage collector finds while a model is captured doesn't become part of it."""

from __future__ import annotations

import gc

import torch
from torch import nn

from partita.plugins.capture_torch import capture_module


class Ending:
    """Reaches itself, so that only the collector ends it; then it calls operators, as an engine that lets go does."""

    def __init__(self, ended: list[str], held: torch.Tensor):
        self.itself, self.ended, self.held = self, ended, held

    def __del__(self) -> None:
        self.ended.append("garbage")
        self.held.add(1).is_pinned()


def test_no_finalizer_runs_while_a_model_is_captured() -> None:
    ended: list[str] = []
    held = torch.zeros(3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            Ending(ended, held)
            # Far more objects than make the collector look through the young ones.
            lists: list[list[int]] = [[] for _ in range(20 * gc.get_threshold()[0])]
            ended.append("forward")
            return self.linear(value).sum() if lists else value

    assert gc.isenabled()
    graph = capture_module(Model, {"value": torch.zeros(2, 4)}, name="garbage").graph
    assert [op.kind for op in graph.ops] == ["linear", "sum"]
    assert ended[0] == "forward"
    assert gc.isenabled()
    gc.collect()
    assert "garbage" in ended
